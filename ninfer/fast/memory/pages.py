"""KV pages: pools of 64-token pages, one page id for all layers, and the list of free ones.

Shapes: per attention layer, keys and values [pages, KV heads, 64, D] in the KV format, int8 with fp16
scales [pages, KV heads, 64, D / 64]. Page ids are handed out and taken back; who holds which page is the
lane's business.
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


class PagePool:
    """``pages`` pages over all ``layers`` attention layers in one KV format."""

    def __init__(self, config: AttentionConfig, layers: list[int], pages: int, kv_format: str) -> None:
        self.format = FORMATS[kv_format]
        self.pages = pages
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
        self._free = list(range(pages))[::-1]

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        arrays = (
            array
            for pool in self.layers.values()
            for array in (pool.keys, pool.values, pool.key_scales, pool.value_scales)
        )
        return sum(array[:1].nbytes for array in arrays)

    def allocate(self, count: int) -> list[int]:
        """``count`` free pages. Errors: ``IndexError`` when fewer are free: the scheduler reserves first."""
        if count > len(self._free):
            raise IndexError(f"{count} pages asked for, {len(self._free)} free")
        return [self._free.pop() for _ in range(count)]

    def free(self, pages: list[int]) -> None:
        """Give pages back."""
        self._free.extend(pages)

    def check_integrity(self) -> None:
        """Every free page is free once; called at idle."""
        assert len(set(self._free)) == len(self._free), "a KV page is free twice"
