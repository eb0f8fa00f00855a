"""KV rows of one byte or half a byte with floating-point codes: encoding one row, expanding pages of them.

``fp8_row``: E4M3 codes, one fp16 scale a row. ``nvfp4_g16``: E2M1 codes in pairs (the even dimension low),
one E4M3 scale per 16. Every product of code and scale is exact in float32, so what is read back is what the
codes say. Source: ``spec/kv_formats.yaml``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from ninfer.fast.ops.attention import contract as c
from ninfer.fast.ops.attention.rows import store_scale
from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.linear.formats import e2m1, e4m3
from ninfer.fast.ops.routines import emitted
from ninfer.fast.ops.vector import I8, I32, I64, LANES, VF32, VI32, Emitter, kernel
from ninfer.fast.ops.views import bytes_

GROUP = 16  # elements of an nvfp4 scale
_TARGETS = (6.0, 4.0, 4.5, 5.0, 5.5)
_LARGEST_E4M3, _LEAST_E4M3 = 448.0, 2.0**-9


def _bits(e: Emitter, vector: Any) -> Any:
    return e.builder.bitcast(vector, VI32)


def _absolute(e: Emitter, x: Any) -> Any:
    return e.builder.bitcast(e.builder.and_(_bits(e, x), e.ints([0x7FFFFFFF] * LANES)), VF32)


def _minimum(e: Emitter, left: Any, right: Any) -> Any:
    return e.builder.select(e.builder.fcmp_ordered("<", left, right), left, right)


def _sign(e: Emitter, x: Any, shift: int, mask: int) -> Any:
    return e.builder.and_(e.builder.lshr(_bits(e, x), e.ints([shift] * LANES)), e.ints([mask] * LANES))


def _e4m3_words(e: Emitter, x: Any) -> Any:
    """The nearest E4M3 word of each lane, ties to even, saturating at 448, as int32."""
    builder = e.builder
    size = _minimum(e, _absolute(e, x), e.floats([_LARGEST_E4M3] * LANES))
    bits = _bits(e, size)
    odd = builder.and_(builder.lshr(bits, e.ints([20] * LANES)), e.ints([1] * LANES))
    rounded = builder.lshr(
        builder.add(bits, builder.add(odd, e.ints([0x7FFFF] * LANES))), e.ints([20] * LANES)
    )
    normal = builder.sub(rounded, e.ints([960] * LANES))  # (127 - 7) << 3
    scaled = e.call("llvm.rint.v16f32", VF32, e.fmul(size, e.floats([512.0] * LANES)))
    small = builder.fptosi(scaled, VI32)
    below = builder.fcmp_ordered("<", size, e.floats([2.0**-6] * LANES))
    return builder.or_(builder.select(below, small, normal), _sign(e, x, 24, 0x80))


def _e2m1_words(e: Emitter, x: Any) -> Any:
    """The nearest E2M1 word of each lane, saturating at 6, as int32; a tie goes to the even word."""
    builder = e.builder
    size, word = _absolute(e, x), e.ints([0] * LANES)
    for bound, comparison in (
        (0.25, ">"), (0.75, ">="), (1.25, ">"), (1.75, ">="), (2.5, ">"), (3.5, ">="), (5.0, ">"),
    ):  # fmt: skip
        above = builder.fcmp_ordered(comparison, size, e.floats([bound] * LANES))
        word = builder.add(word, builder.zext(above, VI32))
    return builder.or_(word, _sign(e, x, 28, 8))


@kernel("ii", "f")
def largest_size(e: Emitter, source: Any, n: Any) -> Any:
    """The largest absolute value of ``n`` floats, a multiple of 16."""
    largest = e.variable(e.zero())
    with e.loop(e.integer(0), n, LANES) as index:
        largest.set(e.maximum(_absolute(e, e.load(e.at(source, index, 4), "f32")), largest.get()))
    return e.largest(largest.get())


@kernel("iifi")
def _write_fp8(e: Emitter, source: Any, codes: Any, inverse: Any, n: Any) -> None:
    by = e.splat(inverse)
    with e.loop(e.integer(0), n, LANES) as index:
        words = _e4m3_words(e, e.fmul(e.load(e.at(source, index, 4), "f32"), by))
        e.write(e.at(codes, index, 1), e.builder.trunc(words, ir.VectorType(I8, LANES)), 1)


@part
def store_fp8(source, codes, scales, n):
    """``n`` floats as E4M3: scale = fp16(amax / 448) within fp16's range, code = e4m3(x · (1 / scale))."""
    largest = largest_size(source, n)
    if largest > 0:
        clamped = max(largest / np.float32(448), np.float32(5.9604644775390625e-08))
        scale = store_scale(min(clamped, np.float32(65504)), scales)
        _write_fp8(source, codes, np.float32(1) / scale, n)
        return
    store_scale(np.float32(0), scales)
    code = bytes_(codes, n)
    for index in range(n):
        code[index] = 0


@emitted("attention.store_nvfp4", "iiii")
def store_nvfp4(e: Emitter, source: Any, codes: Any, scales: Any, n: Any) -> None:
    """``n`` floats as E2M1 pairs with an E4M3 scale per 16: the best of five targets, the first on ties."""
    builder = e.builder
    with e.loop(e.integer(0), n, GROUP) as index:
        x = e.load(e.at(source, index, 4), "f32")
        largest = e.splat(e.largest(_absolute(e, x)))
        best: Any = None
        for target in _TARGETS:
            inverse = float(np.float32(1) / np.float32(target))
            wanted = e.fmul(largest, e.floats([inverse] * LANES))
            wanted = e.maximum(wanted, e.floats([_LEAST_E4M3] * LANES))
            word = _e4m3_words(e, wanted)
            step = e4m3(e, word)
            code = _e2m1_words(e, builder.fdiv(x, step))
            away = builder.fsub(x, e.fmul(e2m1(e, code), step))
            error = e.splat(e.sum(e.fmul(away, away)))
            if best is None:
                best = (code, word, error)
                continue
            better = builder.fcmp_ordered("<", error, best[2])
            best = tuple(
                builder.select(better, new, old) for new, old in zip((code, word, error), best, strict=True)
            )
        code, word, _ = best
        some = builder.fcmp_ordered(">", largest, e.zero())
        code, word = (builder.select(some, vector, e.ints([0] * LANES)) for vector in (code, word))
        pair = ir.VectorType(I32, LANES // 2)
        even, odd = (
            builder.shuffle_vector(code, code, ir.Constant(pair, list(range(first, LANES, 2))))
            for first in (0, 1)
        )
        packed = builder.or_(even, builder.shl(odd, ir.Constant(pair, [4] * (LANES // 2))))
        at = builder.add(codes, builder.lshr(index, e.integer(1)))
        e.write(at, builder.trunc(packed, ir.VectorType(I8, LANES // 2)), 1)
        first = builder.extract_element(word, ir.Constant(I32, 0))
        e.write(builder.add(scales, builder.lshr(index, e.integer(4))), builder.trunc(first, I8), 1)


@emitted("attention.expand_fp8", "iiiii")
def expand_fp8(e: Emitter, source: Any, scales: Any, count: Any, d: Any, target: Any) -> None:
    """``count`` stored rows of ``d`` elements as float32."""
    with e.loop(e.integer(0), count, 1) as row:
        scale = e.splat(e.scalar(e.at(scales, row, 2), "f16"))
        begin = e.builder.mul(row, d)
        with e.loop(e.integer(0), d, LANES) as index:
            place = e.builder.add(begin, index)
            value = e4m3(e, e.bytes(e.builder.add(source, place)))
            e.store(e.at(target, place, 4), e.fmul(value, scale))


@emitted("attention.expand_nvfp4", "iiiii")
def expand_nvfp4(e: Emitter, source: Any, scales: Any, count: Any, d: Any, target: Any) -> None:
    """``count`` stored rows of ``d`` elements as float32."""
    builder, wide = e.builder, ir.VectorType(I64, LANES)
    shifts = ir.Constant(wide, [4 * lane for lane in range(LANES)])
    with e.loop(e.integer(0), builder.mul(count, d), GROUP) as index:
        word = builder.zext(e.read(builder.add(scales, builder.lshr(index, e.integer(4))), I8, 1), I32)
        scale = e4m3(e, e.splat(word))
        pairs = e.splat(e.read(builder.add(source, builder.lshr(index, e.integer(1))), I64, 1))
        nibbles = builder.and_(builder.trunc(builder.lshr(pairs, shifts), VI32), e.ints([15] * LANES))
        e.store(e.at(target, index, 4), e.fmul(e2m1(e, nibbles), scale))


@part
def store_narrow(number, k, v, slot, d, size):
    """One key and value, rotated where the format rotates, at row ``slot`` of the pools."""
    if number == c.KV_NVFP4:
        store_nvfp4(k, d[c.K_POOL] + slot * (size // 2), d[c.K_SCALES] + slot * (size // GROUP), size)
    else:
        store_fp8(k, d[c.K_POOL] + slot * size, d[c.K_SCALES] + 2 * slot, size)
    if number == c.KV_FP8:
        store_fp8(v, d[c.V_POOL] + slot * size, d[c.V_SCALES] + 2 * slot, size)
    else:
        store_nvfp4(v, d[c.V_POOL] + slot * (size // 2), d[c.V_SCALES] + slot * (size // GROUP), size)


@part
def expand_keys(d, slot, count, target):
    """``count`` keys from row ``slot`` on as float32."""
    size = d[c.HEAD_DIM]
    if d[c.KV_FORMAT] == c.KV_NVFP4:
        expand_nvfp4(
            d[c.K_POOL] + slot * (size // 2), d[c.K_SCALES] + slot * (size // GROUP), count, size, target
        )
    else:
        expand_fp8(d[c.K_POOL] + slot * size, d[c.K_SCALES] + 2 * slot, count, size, target)


@part
def expand_values(d, slot, count, target):
    """``count`` values from row ``slot`` on as float32."""
    size = d[c.HEAD_DIM]
    if d[c.KV_FORMAT] == c.KV_FP8:
        expand_fp8(d[c.V_POOL] + slot * size, d[c.V_SCALES] + 2 * slot, count, size, target)
    else:
        expand_nvfp4(
            d[c.V_POOL] + slot * (size // 2), d[c.V_SCALES] + slot * (size // GROUP), count, size, target
        )
