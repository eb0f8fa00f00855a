"""Copies of activations in the orders and types that weight formats read, made as soon as they are.

A descriptor says where: the fields PERMUTED, PERMUTED_STRIDE, ROUNDED, ROUNDED_STRIDE in this order, an
address of 0 where nobody reads that copy.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.vector import I16, LANES, VI32, Emitter, kernel

_EVENS = [*range(0, 32, 2)]
_ODDS = [*range(1, 32, 2)]


@kernel("iii")
def evens_first(e: Emitter, source: Any, target: Any, n: Any) -> None:
    """Copy ``n`` floats (a multiple of 32) with the even lanes of every 32 before the odd ones."""
    with e.loop(e.integer(0), n, 32) as index:
        start = e.at(source, index, 4)
        low, high = e.load(start, "f32"), e.load(e.add(start, 64), "f32")
        end = e.at(target, index, 4)
        e.store(end, e.builder.shuffle_vector(low, high, e.ints(_EVENS)))
        e.store(e.add(end, 64), e.builder.shuffle_vector(low, high, e.ints(_ODDS)))


@kernel("iii")
def round_bf16(e: Emitter, source: Any, target: Any, n: Any) -> None:
    """``n`` floats (a multiple of 16) as the nearest bf16 words, ties to even; NaN stays NaN."""
    builder = e.builder
    with e.loop(e.integer(0), n, LANES) as index:
        value = e.load(e.at(source, index, 4), "f32")
        bits = builder.bitcast(value, VI32)
        high = builder.lshr(bits, e.ints([16] * LANES))
        odd = builder.and_(high, e.ints([1] * LANES))
        rounded = builder.lshr(
            builder.add(builder.add(bits, e.ints([0x7FFF] * LANES)), odd), e.ints([16] * LANES)
        )
        quiet = builder.or_(high, e.ints([0x40] * LANES))
        words = builder.select(builder.fcmp_ordered("ord", value, value), rounded, quiet)
        e.write(e.at(target, index, 2), builder.trunc(words, ir.VectorType(I16, LANES)), 2)


@part
def copy_row(d, fields, row, column, y, n):
    """The ``n`` floats at ``y``, column ``column`` of row ``row``, into the copies that ``d`` names."""
    if d[fields]:
        evens_first(y, d[fields] + row * d[fields + 1] + 4 * column, n)
    if d[fields + 2]:
        round_bf16(y, d[fields + 2] + row * d[fields + 3] + 2 * column, n)
