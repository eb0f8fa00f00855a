"""Memory for what every round streams: cache lines are whole, and pages as large as the system has them.

Over pages of 4 KiB a pass over a small model's weights misses the address cache at every step, and how fast
it runs depends on where the pages happen to lie.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

_LINE, _LARGE_PAGE = 64, 2 << 20
# One mapping; what nobody asks for of it is never backed by memory.
_BLOCK = 64 << 20


class Arena:
    """Hands out arrays that begin on a cache line; they live as long as any array of their mapping."""

    def __init__(self) -> None:
        self._block = np.zeros(0, np.uint8)
        self._used = 0

    def copy(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A contiguous copy of ``array``."""
        target = self._take(array.nbytes).view(array.dtype).reshape(array.shape)
        target[...] = array
        return target

    def _take(self, size: int) -> npt.NDArray[np.uint8]:
        if self._used + size > len(self._block):
            self._block, self._used = _mapping(max(size, _BLOCK)), 0
        taken = self._block[self._used : self._used + size]
        self._used += -(-size // _LINE) * _LINE
        return taken


def _mapping(size: int) -> npt.NDArray[np.uint8]:
    """Zeroed memory from the border of a large page on."""
    memory = mmap.mmap(-1, size + _LARGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system without large pages has small ones
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    begin = -whole.ctypes.data % _LARGE_PAGE
    return whole[begin : begin + size]
