"""What the machine can do at best, right now: bytes read per second, and matrix products.

Owns the three ceilings that a phase is compared with. Other load moves them by half, so they are measured
next to what they judge and never once for a whole run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numba import njit

GEMM_SIZE = 2048
_TRIES = 3


@njit(nogil=True)
def _total(words: Any) -> Any:  # an integer sum may be reordered, so it becomes wide vectors
    total = 0
    for word in words:
        total += word
    return total


class Ceilings:
    """``read``: bytes/s with ``threads`` threads over ``read_bytes`` (well beyond L3); ``gemm``: flop/s."""

    def __init__(self, threads: int, read_bytes: int = 1 << 30) -> None:
        words = np.ones(read_bytes // 8, np.int64)
        self._slices = np.array_split(words, threads)
        self._pool = ThreadPoolExecutor(threads)
        self._sizes = {
            dtype: tuple(torch.ones(GEMM_SIZE, GEMM_SIZE, dtype=dtype) for _ in range(3))
            for dtype in (torch.float32, torch.bfloat16)
        }
        self.read()  # compiles
        for dtype in self._sizes:
            self.gemm(dtype)

    def read(self) -> float:
        """One pass per try, the best of a few: a ceiling is what nothing disturbed."""
        count = sum(len(part) for part in self._slices)

        def once() -> None:
            assert sum(self._pool.map(_total, self._slices)) == count

        return 8 * count / best(once)

    def gemm(self, dtype: torch.dtype) -> float:
        """A square product in ``dtype`` with torch's threads, the best of a few."""
        left, right, out = self._sizes[dtype]
        return 2 * GEMM_SIZE**3 / best(lambda: torch.mm(left, right, out=out))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def best(action: Callable[[], object]) -> float:
    """The shortest of a few runs in seconds."""
    times = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def read_gb_s(threads: int) -> float:
    """The read ceiling alone, in GB/s; its memory is given back."""
    ceilings = Ceilings(threads)
    try:
        return ceilings.read() / 1e9
    finally:
        ceilings.close()
