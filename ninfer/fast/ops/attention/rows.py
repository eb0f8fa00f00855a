"""KV rows in their stored formats: writing one, expanding a page of them; and what ends a query's row."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from ninfer.fast.ops.attention.contract import GROUP
from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.routines import emitted
from ninfer.fast.ops.vector import F16, I16, I64, LANES, VF32, VI32, Emitter, element_bytes, kernel
from ninfer.fast.ops.views import bytes_, floats


def _bf16_bits(e: Emitter, value: Any) -> Any:
    """Float32 lanes rounded to bfloat16 (ties to even, finite values), in the high half of int32 lanes."""
    bits = e.builder.bitcast(value, VI32)
    odd = e.builder.and_(e.builder.lshr(bits, e.ints([16] * LANES)), e.ints([1] * LANES))
    rounded = e.builder.add(bits, e.builder.add(odd, e.ints([0x7FFF] * LANES)))
    return e.builder.and_(rounded, e.ints([-65536] * LANES))


@kernel("iii")
def store_bf16(e: Emitter, source: Any, target: Any, n: Any) -> None:
    """``n`` floats as bfloat16."""
    with e.loop(e.integer(0), n, LANES) as index:
        bits = _bf16_bits(e, e.load(e.at(source, index, 4), "f32"))
        words = e.builder.trunc(e.builder.lshr(bits, e.ints([16] * LANES)), ir.VectorType(I16, LANES))
        e.write(e.at(target, index, 2), words, 2)


@kernel("iii")
def store_f16(e: Emitter, source: Any, target: Any, n: Any) -> None:
    """``n`` floats as IEEE halves, ties to even."""
    with e.loop(e.integer(0), n, LANES) as index:
        value = e.load(e.at(source, index, 4), "f32")
        e.write(e.at(target, index, 2), e.builder.fptrunc(value, ir.VectorType(F16, LANES)), 2)


@kernel("ii")
def round_to_bf16(e: Emitter, x: Any, n: Any) -> None:
    """``n`` floats in place to the nearest bfloat16."""
    with e.loop(e.integer(0), n, LANES) as index:
        address = e.at(x, index, 4)
        e.store(address, e.builder.bitcast(_bf16_bits(e, e.load(address, "f32")), VF32))


@kernel("fi", "f")
def store_scale(e: Emitter, value: Any, address: Any) -> Any:
    """Store a scale as an IEEE half; returns what was stored."""
    half = e.builder.fptrunc(value, F16)
    e.write(address, half, 2)
    return e.builder.fpext(half, value.type)


@part
def store_int8(source, codes, scales, n):
    """``n`` floats as int8, one fp16 scale per 64: scale = fp16(amax / 127), code = rint(x · (1 / scale))."""
    x, code = floats(source, n), bytes_(codes, n)
    for group in range(n // GROUP):
        begin = group * GROUP
        largest = np.float32(0)
        for index in range(begin, begin + GROUP):
            largest = max(largest, abs(x[index]))
        scale = store_scale(largest / np.float32(127), scales + 2 * group)
        inverse = np.float32(1) / scale if scale != 0 else np.float32(0)
        for index in range(begin, begin + GROUP):
            rounded = np.rint(x[index] * inverse)
            code[index] = np.int8(min(np.float32(127), max(np.float32(-127), rounded)))


@part
def rotate(address, n):
    """In place: the normalised Sylvester–Walsh–Hadamard transform of ``n`` floats, natural order."""
    x = floats(address, n)
    stride = 1
    while stride < n:
        for begin in range(0, n, 2 * stride):
            for index in range(begin, begin + stride):
                low, high = x[index], x[index + stride]
                x[index], x[index + stride] = low + high, low - high
        stride *= 2
    scale = np.float32(1.0 / np.sqrt(n))
    for index in range(n):
        x[index] *= scale


def group_scale(e: Emitter, scales: Any, index: Any) -> Any:
    """The scale of the 64 elements that begin at number ``index`` of all."""
    group = e.builder.lshr(index, ir.Constant(I64, 6))
    return e.splat(e.scalar(e.at(scales, group, 2), "f16"))


def _expand(kind: str) -> Any:
    """``(source, scales, count, d, target)``: ``count`` stored rows of ``d`` elements as float32."""
    size = element_bytes(kind)

    @emitted(f"attention.expand_{kind}", "iiiii")
    def expand(e: Emitter, source: Any, scales: Any, count: Any, d: Any, target: Any) -> None:
        with e.loop(e.integer(0), e.builder.mul(count, d), GROUP) as index:
            scale = group_scale(e, scales, index) if kind == "i8" else None
            for part_ in range(4):
                lane = e.add(index, LANES * part_)
                value = e.load(e.at(source, lane, size), kind)
                e.store(e.at(target, lane, 4), value if scale is None else e.fmul(value, scale))

    return expand


expand_f16, expand_i8 = _expand("f16"), _expand("i8")


@kernel("iif")
def scale_row(e: Emitter, x: Any, n: Any, factor: Any) -> None:
    """X ← factor · x for ``n`` floats, a multiple of 16."""
    by = e.splat(factor)
    with e.loop(e.integer(0), n, LANES) as index:
        address = e.at(x, index, 4)
        e.store(address, e.fmul(e.load(address, "f32"), by))


@kernel("iiif")
def add_scaled(e: Emitter, x: Any, y: Any, n: Any, factor: Any) -> None:
    """Y ← y + factor · x for ``n`` floats, a multiple of 16."""
    by = e.splat(factor)
    with e.loop(e.integer(0), n, LANES) as index:
        address = e.at(y, index, 4)
        e.store(address, e.fma(by, e.load(e.at(x, index, 4), "f32"), e.load(address, "f32")))


@kernel("iiif")
def gate_row(e: Emitter, x: Any, gate: Any, n: Any, factor: Any) -> None:
    """X ← factor · x · σ(gate) for ``n`` floats, a multiple of 16."""
    by = e.splat(factor)
    with e.loop(e.integer(0), n, LANES) as index:
        address = e.at(x, index, 4)
        value = e.fmul(e.load(address, "f32"), by)
        e.store(address, e.fmul(value, e.sigmoid(e.load(e.at(gate, index, 4), "f32"))))
