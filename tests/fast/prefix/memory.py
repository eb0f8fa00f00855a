"""Pages and slots for the prefix index, without anything in them, and sequences of blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ninfer.fast.prefix.content import block_hash
from ninfer.fast.prefix.cost import CostModel
from ninfer.fast.prefix.index import PrefixIndex

PAGE, IMAGE = 1000, 5000


class Memory:
    """Pages and slots by count of owners; contents are what a test writes there."""

    def __init__(self, pages: int, slots: int) -> None:
        self.owners = [0] * pages
        self.slot_taken = [False] * slots
        self.page_holds: dict[int, object] = {}
        self.slot_holds: dict[int, object] = {}

    @property
    def free_pages(self) -> int:
        return self.owners.count(0)

    def new_page(self, content: object) -> int:
        page = self.owners.index(0)
        self.owners[page] = 1
        self.page_holds[page] = content
        return page

    def new_slot(self, content: object) -> int:
        slot = self.slot_taken.index(False)
        self.slot_taken[slot] = True
        self.slot_holds[slot] = content
        return slot

    def hold_page(self, page: int) -> None:
        assert self.owners[page] > 0
        self.owners[page] += 1

    def drop_page(self, page: int) -> None:
        assert self.owners[page] > 0
        self.owners[page] -= 1

    def drop_slot(self, slot: int) -> None:
        assert self.slot_taken[slot]
        self.slot_taken[slot] = False


def new_index(memory: Memory, slots: int, hashing: Callable[[bytes, bytes], int] = block_hash) -> PrefixIndex:
    return PrefixIndex(memory, slots, PAGE, IMAGE, CostModel(256, IMAGE), hashing)


def tokens(*blocks: int, tail: int = 0) -> np.ndarray:
    """Blocks of one value each, then ``tail`` tokens of the value 9."""
    return np.array([value for value in blocks for _ in range(64)] + [9] * tail, np.int32)
