"""Plain-memory views for compiled kernels: arrays over addresses that the engine allocated once.

Knows no operation; used only inside Numba functions. A view is built in place, without ``carray``, whose
inference costs more compile time than most kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import from_dtype, types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from ninfer.fast.ops.compiled import part


def _view(element: Any, item_bytes: int, fields: int = 0) -> Any:
    """``(address, count)``: ``count`` elements at ``address``, or rows of ``fields`` elements."""
    array = types.Array(element, 2 if fields else 1, "C")
    shape = [fields] if fields else []

    @intrinsic
    def view(typing_context: Any, address: Any, count: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            result = context.make_array(array)(context, builder)
            size, row = (
                context.get_constant(types.intp, width) for width in (item_bytes, item_bytes * (fields or 1))
            )
            data = builder.inttoptr(values[0], result.data.type)
            sizes = [values[1], *(context.get_constant(types.intp, width) for width in shape)]
            strides = [row, size] if fields else [size]
            populate_array(result, data, sizes, strides, size, meminfo=None)
            return result._getvalue()

        return array(types.int64, types.int64), codegen

    return view


def rows_of(fields: int) -> Any:
    """A view of ``count`` rows of ``fields`` int64."""
    return _view(types.int64, 8, fields)


def records(record: np.dtype[Any]) -> Any:
    """A view of ``count`` records."""
    return _view(from_dtype(record), record.itemsize)


# float32, float64, int32, int64 and int8 elements; addresses and counts are int64.
floats, doubles, integers, longs, bytes_ = (
    _view(element, element.bitwidth // 8)
    for element in (types.float32, types.float64, types.int32, types.int64, types.int8)
)


# Whole-array assignment compiles a generic broadcast, ten times slower to compile than these two.
@part
def clear(address, count):
    """``count`` float32 at ``address`` become 0."""
    target = floats(address, count)
    for index in range(count):
        target[index] = 0


@part
def copy(source, target, count):
    """Copy ``count`` float32."""
    x, y = floats(source, count), floats(target, count)
    for index in range(count):
        y[index] = x[index]
