"""Memory of sequences: each lane's state image and pages, and what the prefix cache keeps of them.

Owns who gets and who shares what; contents move by whole images and whole pages only, whatever parts a model
has in them. The cache's own references go through ``CacheMemory``'s members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ninfer.fast.memory.pages import PageOwners
from ninfer.fast.memory.states import StateImages
from ninfer.fast.ops.control import PAGE_TOKENS

NO_SLOT = NO_PAGE = -1


@dataclass(slots=True, eq=False)
class Lane:
    """One sequence's memory: its state slot, its pages and how many tokens they hold (the frontier).

    ``shift`` is the rotary position of the next token minus its place. ``block_table`` stays where it is as
    pages are added; ``table_address`` is where. ``kept`` is where rounds keep its residual rows, 0: nowhere.
    """

    slot: int
    pages: list[int]
    block_table: npt.NDArray[np.int32]
    frontier: int = 0
    shift: int = 0
    kept: int = 0
    table_address: int = field(init=False)

    def __post_init__(self) -> None:
        self.table_address = int(self.block_table.ctypes.data)


@dataclass(frozen=True, slots=True)
class Resume:
    """What a lane begins with: shared pages, the tail's to copy (or NO_PAGE), an image to copy."""

    pages: Sequence[int]
    tail: int
    slot: int
    frontier: int
    shift: int


def pages_for(tokens: int) -> int:
    """Pages that ``tokens`` tokens fill."""
    return -(-tokens // PAGE_TOKENS)


class LaneMemory:
    """Lanes over ``states`` and ``pages``; a lane holds at most ``max_context`` tokens."""

    def __init__(self, states: StateImages, pages: PageOwners, max_context: int) -> None:
        self.states, self.pages = states, pages
        self._most = pages_for(max_context)

    @property
    def free_pages(self) -> int:
        return self.pages.free_pages

    # --- lanes -------------------------------------------------------------------------------------

    def open(self, tokens: int = 0) -> Lane:
        """A lane with a zeroed image and pages for ``tokens`` tokens. Errors: ``IndexError`` without them."""
        lane = Lane(NO_SLOT, [], np.zeros(max(self._most, pages_for(tokens)), np.int32))
        self.grow(lane, tokens)
        try:
            lane.slot = self.states.allocate()
        except IndexError:
            self.pages.free(lane.pages)
            raise
        return lane

    def missing(self, lane: Lane, tokens: int) -> int:
        """Pages that the lane lacks to hold ``tokens`` tokens."""
        return max(0, pages_for(tokens) - len(lane.pages))

    def grow(self, lane: Lane, tokens: int) -> None:
        """Give the lane pages for ``tokens`` tokens in all. Errors: ``IndexError``; the lane is as before."""
        added = self.pages.allocate(self.missing(lane, tokens))
        lane.block_table[len(lane.pages) : len(lane.pages) + len(added)] = added
        lane.pages += added

    def resume(self, lane: Lane, source: Resume) -> None:
        """Let a lane without pages go on from ``source``. Errors: ``IndexError``: no page for the tail."""
        assert not lane.pages
        if source.tail != NO_PAGE:
            (page,) = self.pages.allocate(1)
            self.pages.copy(source.tail, page)
            lane.pages.append(page)
        for page in source.pages:
            self.pages.hold(page)
        lane.pages[:0] = source.pages
        lane.block_table[: len(lane.pages)] = lane.pages
        self.states.copy(source.slot, lane.slot)
        lane.frontier, lane.shift = source.frontier, source.shift

    def close(self, lane: Lane) -> None:
        """Give a lane's memory back."""
        if lane.slot != NO_SLOT:
            self.states.free(lane.slot)
        self.pages.free(lane.pages)
        lane.pages = []

    # --- what the cache takes ----------------------------------------------------------------------

    def copy_tail(self, lane: Lane) -> int:
        """A page of its own with the tokens behind the lane's last block border. Errors: ``IndexError``."""
        (page,) = self.pages.allocate(1)
        self.pages.copy(lane.pages[lane.frontier // PAGE_TOKENS], page)
        return page

    def copy_state(self, lane: Lane) -> int:
        """A slot with a copy of the lane's image. Errors: ``IndexError`` when no slot is free."""
        slot = self.states.take()
        self.states.copy(lane.slot, slot)
        return slot

    def surrender(self, lane: Lane) -> tuple[int, int]:
        """The lane's image and its tail's page (NO_PAGE: none) change hands; the lane can only be closed."""
        slot, page = lane.slot, NO_PAGE
        lane.slot = NO_SLOT
        if lane.frontier % PAGE_TOKENS:
            page = lane.pages[lane.frontier // PAGE_TOKENS]
            self.pages.hold(page)
        return slot, page

    def swap(self, lane: Lane, block: int, page: int) -> None:
        """Let a lane share a page that holds the same tokens as its own, which goes."""
        self.pages.hold(page)
        self.pages.free([lane.pages[block]])
        lane.pages[block] = lane.block_table[block] = page

    def hold_page(self, page: int) -> None:
        """``CacheMemory``."""
        self.pages.hold(page)

    def drop_page(self, page: int) -> None:
        """``CacheMemory``."""
        self.pages.free([page])

    def drop_slot(self, slot: int) -> None:
        """``CacheMemory``."""
        self.states.free(slot)

    def check_idle(self, cached_pages: int, cached_slots: int) -> None:
        """At idle: everything that the cache does not keep is free, once. Errors: ``AssertionError``."""
        self.pages.check_integrity()
        assert self.states.free_slots == self.states.slots - cached_slots, "a state slot leaked"
        assert self.pages.free_pages == self.pages.pages - cached_pages, "a KV page leaked"
