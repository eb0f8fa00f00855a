"""KV pages: pools of 64-token pages, one page id for all layers, and how many owners each page has.

Shapes: per attention layer, keys and values [pages, KV heads, 64, D] in the KV format, int8 with fp16
scales [pages, KV heads, 64, D / 64]. A page is handed out with one owner, may get more (lanes that share a
prefix, the prefix cache) and is free when the last one gives it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.fast.ops.attention.contract import GROUP, KV_BF16, KV_F32, KV_INT8
from ninfer.fast.ops.control import PAGE_TOKENS
from ninfer.model.config import AttentionConfig

FORMATS = {"float32": KV_F32, "bf16": KV_BF16, "int8": KV_INT8}
_WORDS: dict[int, Any] = {KV_F32: np.float32, KV_BF16: np.uint16, KV_INT8: np.int8}


def element_bytes(number: int) -> int:
    """Bytes of one stored element of a KV format."""
    return int(np.dtype(_WORDS[number]).itemsize)


@dataclass(frozen=True, slots=True, eq=False)
class LayerPool:
    """The pools of one attention layer; scales are empty unless the format has them."""

    keys: npt.NDArray[Any]
    values: npt.NDArray[Any]
    key_scales: npt.NDArray[np.float16]
    value_scales: npt.NDArray[np.float16]


class PageOwners:
    """Ids 0..``pages`` − 1 with their counts of owners; memory or not, pages are accounted alike."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._free = list(range(pages))[::-1]
        self._owners = [0] * pages

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def owners(self, page: int) -> int:
        """How many hold this page."""
        return self._owners[page]

    def allocate(self, count: int) -> list[int]:
        """``count`` free pages. Errors: ``IndexError`` when fewer are free: the scheduler reserves first."""
        if count > len(self._free):
            raise IndexError(f"{count} pages asked for, {len(self._free)} free")
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._owners[page] = 1
        return taken

    def hold(self, page: int) -> None:
        """One more owner of a page that has some."""
        assert self._owners[page] > 0, f"page {page} is free"
        self._owners[page] += 1

    def free(self, pages: list[int]) -> None:
        """One owner less of each."""
        for page in pages:
            assert self._owners[page] > 0, f"page {page} freed twice"
            self._owners[page] -= 1
            if self._owners[page] == 0:
                self._free.append(page)

    def copy(self, source: int, target: int) -> None:
        """Contents of one page into another; here there are none."""

    def check_integrity(self) -> None:
        """Every page without owners is free once; called at idle."""
        assert len(set(self._free)) == len(self._free), "a KV page is free twice"
        assert self._owners.count(0) == len(self._free), "a KV page without owners is not free"
        assert not any(map(self._owners.__getitem__, self._free)), "a free KV page has an owner"


class PagePool(PageOwners):
    """``pages`` pages over all ``layers`` attention layers in one KV format."""

    def __init__(self, config: AttentionConfig, layers: list[int], pages: int, kv_format: str) -> None:
        super().__init__(pages)
        self.format = FORMATS[kv_format]
        rows = (pages, config.kv_heads, PAGE_TOKENS)
        groups = config.head_dim // GROUP if self.format == KV_INT8 else 0
        word = _WORDS[self.format]
        self.layers = {
            layer: LayerPool(
                np.zeros((*rows, config.head_dim), word),
                np.zeros((*rows, config.head_dim), word),
                np.zeros((*rows, groups), np.float16),
                np.zeros((*rows, groups), np.float16),
            )
            for layer in layers
        }

    def copy(self, source: int, target: int) -> None:
        """Keys, values and scales of one page into another, over all layers."""
        for pool in self.layers.values():
            for array in (pool.keys, pool.values, pool.key_scales, pool.value_scales):
                array[target] = array[source]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        arrays = (
            array
            for pool in self.layers.values()
            for array in (pool.keys, pool.values, pool.key_scales, pool.value_scales)
        )
        return sum(array[:1].nbytes for array in arrays)
