"""KV pages: pools of 64-token pages, one page id for all layers, and how many owners each page has.

Shapes: per attention layer, keys and values [pages, KV heads, 64, D] in the KV format (two values a word in
nvfp4), and the scales of their rows: int8 one per 64 values, fp8 one, nvfp4 one per 16. A page is handed out
with one owner, may get more (lanes that share a prefix, the prefix cache) and is free when the last one gives
it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer import spec
from ninfer.fast.ops.attention.contract import KV_BF16, KV_F32, KV_FP8, KV_INT8, KV_K8V4, KV_NVFP4
from ninfer.fast.ops.control import PAGE_TOKENS
from ninfer.model.config import AttentionConfig

FORMATS = {
    "float32": KV_F32, "bf16": KV_BF16, "int8": KV_INT8, "fp8": KV_FP8, "nvfp4": KV_NVFP4, "k8v4": KV_K8V4
}  # fmt: skip
_WORDS: dict[str, Any] = {
    "float32": np.float32, "bf16": np.uint16, "fp16": np.uint16, "int8": np.int8, "e4m3fn": np.uint8,
    "e2m1": np.uint8,
}  # fmt: skip
_SCALES: dict[str, Any] = {"fp16": np.float16, "e4m3fn": np.uint8}


@dataclass(frozen=True, slots=True)
class Plane:
    """Keys or values of a format: words and scales of one row of ``head_dim`` values."""

    words: int
    word_type: Any
    scales: int
    scale_type: Any

    @property
    def scale_bytes(self) -> int:
        return self.scales * int(np.dtype(self.scale_type).itemsize)

    @property
    def row_bytes(self) -> int:
        return self.words * int(np.dtype(self.word_type).itemsize) + self.scale_bytes


def planes(kv_format: str, head_dim: int) -> tuple[Plane, Plane]:
    """Keys and values as ``spec/kv_formats.yaml`` lays them out."""
    table = spec.document("kv_formats")
    return tuple(  # type: ignore[return-value]
        _plane(table["encodings"][table["formats"][kv_format][role]["encoding"]], head_dim)
        for role in ("key", "value")
    )


def _plane(rule: Mapping[str, Any], head_dim: int) -> Plane:
    word, group = _WORDS[rule["code_type"]], rule.get("group")
    words = head_dim * rule["code_bits"] // (8 * np.dtype(word).itemsize)
    scales = 0 if group is None else 1 if group == "row" else head_dim // group
    return Plane(words, word, scales, _SCALES[rule.get("scale_type", "fp16")])


@dataclass(frozen=True, slots=True, eq=False)
class LayerPool:
    """The pools of one attention layer; scales are empty unless the format has them."""

    keys: npt.NDArray[Any]
    values: npt.NDArray[Any]
    key_scales: npt.NDArray[Any]
    value_scales: npt.NDArray[Any]


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
        key, value = planes(kv_format, config.head_dim)
        self.layers = {
            layer: LayerPool(
                np.zeros((*rows, key.words), key.word_type),
                np.zeros((*rows, value.words), value.word_type),
                np.zeros((*rows, key.scales), key.scale_type),
                np.zeros((*rows, value.scales), value.scale_type),
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
