"""Plain-memory views for compiled kernels: arrays over addresses that the engine allocated once.

Knows no operation; used only inside Numba functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


@njit(inline="always")
def floats(address, count):
    """``count`` float32 at ``address``."""
    return carray(pointer(address), (count,), np.float32)


@njit(inline="always")
def halves(address, count):
    """``count`` uint16 words (bf16 or fp16 bits) at ``address``."""
    return carray(pointer(address), (count,), np.uint16)


@njit(inline="always")
def bytes_(address, count):
    """``count`` int8 at ``address``."""
    return carray(pointer(address), (count,), np.int8)


@njit(inline="always")
def integers(address, count):
    """``count`` int32 at ``address``."""
    return carray(pointer(address), (count,), np.int32)


@njit(inline="always")
def longs(address, count):
    """``count`` int64 at ``address``."""
    return carray(pointer(address), (count,), np.int64)


# Whole-array assignment compiles a generic broadcast, ten times slower to compile than these two.
@njit(nogil=True, cache=True, error_model="numpy")
def clear(address, count):
    """``count`` float32 at ``address`` become 0."""
    target = floats(address, count)
    for index in range(count):
        target[index] = 0


@njit(nogil=True, cache=True, error_model="numpy")
def copy(source, target, count):
    """Copy ``count`` float32."""
    x, y = floats(source, count), floats(target, count)
    for index in range(count):
        y[index] = x[index]
