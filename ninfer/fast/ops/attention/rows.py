"""KV rows in their stored formats: writing one, and the dot products and sums that read a page of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from ninfer.fast.ops.attention.contract import GROUP, KV_BF16, KV_F32
from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.control import PAGE_TOKENS
from ninfer.fast.ops.vector import F16, I16, I32, I64, LANES, VF32, VI32, Emitter, element_bytes, kernel
from ninfer.fast.ops.views import bytes_, floats

_TILE = 64
_FOUR = 4  # queries that share a page in registers


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


def _scores(kind: str) -> Any:
    """``(q, keys, scales, count, d, out)``: out[j] = q · keys[j], j < count; ``d`` a multiple of 64."""
    size = element_bytes(kind)

    def products(e: Emitter, q: Any, keys: Any, scales: Any, row: Any, d: Any) -> Any:
        """Lane sums of q ⊙ keys[row]."""
        start = e.at(keys, e.builder.mul(row, d), size)
        sums = [e.variable(e.zero()) for _ in range(4)]
        with e.loop(e.integer(0), d, _TILE) as index:
            scale = group_scale(e, scales, row, d, index) if kind == "i8" else None
            for part in range(4):
                lane = e.add(index, LANES * part)
                key = e.load(e.at(start, lane, size), kind)
                if scale is not None:
                    key = e.fmul(key, scale)
                sums[part].set(e.fma(key, e.load(e.at(q, lane, 4), "f32"), sums[part].get()))
        first, second, third, fourth = (total.get() for total in sums)
        return e.fadd(e.fadd(first, second), e.fadd(third, fourth))

    @kernel("iiiiii")
    def scores(e: Emitter, q: Any, keys: Any, scales: Any, count: Any, d: Any, out: Any) -> None:
        whole = e.builder.and_(count, e.integer(-LANES))
        with e.loop(e.integer(0), whole, LANES) as row:
            lanes = [products(e, q, keys, scales, e.add(row, lane), d) for lane in range(LANES)]
            e.store(e.at(out, row, 4), e.sums(lanes))
        with e.loop(whole, count, 1) as row:
            e.write(e.at(out, row, 4), e.sum(products(e, q, keys, scales, row, d)), 4)

    return scores


def _accumulate(kind: str) -> Any:
    """``(p, values, scales, count, d, acc)``: acc += Σ_j p[j] · values[j], j ascending."""
    size = element_bytes(kind)

    @kernel("iiiiii")
    def accumulate(e: Emitter, p: Any, values: Any, scales: Any, count: Any, d: Any, acc: Any) -> None:
        with e.loop(e.integer(0), d, _TILE) as index:
            target = e.at(acc, index, 4)
            sums = [e.variable(e.load(e.add(target, 64 * part), "f32")) for part in range(4)]
            with e.loop(e.integer(0), count, 1) as row:
                start = e.at(values, e.builder.add(e.builder.mul(row, d), index), size)
                weight = e.splat(e.scalar(e.at(p, row, 4), "f32"))
                scale = group_scale(e, scales, row, d, index) if kind == "i8" else None
                for part in range(4):
                    value = e.load(e.add(start, LANES * part * size), kind)
                    if scale is not None:
                        value = e.fmul(value, scale)
                    sums[part].set(e.fma(weight, value, sums[part].get()))
            for part in range(4):
                e.store(e.add(target, 64 * part), sums[part].get())

    return accumulate


def group_scale(e: Emitter, scales: Any, row: Any, d: Any, index: Any) -> Any:
    """The scale of the 64 elements of ``row`` that begin at ``index``."""
    group = e.builder.lshr(e.builder.add(e.builder.mul(row, d), index), ir.Constant(I64, 6))
    return e.splat(e.scalar(e.at(scales, group, 2), "f16"))


scores_f32, scores_bf16, scores_i8 = _scores("f32"), _scores("bf16"), _scores("i8")
accumulate_f32, accumulate_f16, accumulate_i8 = _accumulate("f32"), _accumulate("f16"), _accumulate("i8")


@kernel("iiiii")
def scores_of_four(e: Emitter, q: Any, q_stride: Any, keys: Any, d: Any, out: Any) -> None:
    """Out[4, 64] = four queries · 64 float32 keys, each bit for bit as ``scores_f32``."""
    starts = [e.add(q, e.mul(q_stride, column)) for column in range(_FOUR)]
    with e.loop(e.integer(0), e.integer(PAGE_TOKENS), _FOUR) as first:
        found: list[list[Any]] = [[] for _ in range(_FOUR)]
        for key in range(_FOUR):
            row = e.at(keys, e.builder.mul(e.add(first, key), d), 4)
            sums = [[e.variable(e.zero()) for _ in range(4)] for _ in range(_FOUR)]
            with e.loop(e.integer(0), d, _TILE) as index:
                for part in range(4):
                    lane = e.add(index, LANES * part)
                    vector = e.load(e.at(row, lane, 4), "f32")
                    for start, totals in zip(starts, sums, strict=True):
                        query = e.load(e.at(start, lane, 4), "f32")
                        totals[part].set(e.fma(vector, query, totals[part].get()))
            for totals, lanes in zip(sums, found, strict=True):
                one, two, three, four = (total.get() for total in totals)
                lanes.append(e.fadd(e.fadd(one, two), e.fadd(three, four)))
        tile = e.sums([lanes for column in found for lanes in column])
        for column in range(_FOUR):
            own = ir.Constant(ir.VectorType(I32, _FOUR), [_FOUR * column + key for key in range(_FOUR)])
            target = e.at(out, e.add(first, PAGE_TOKENS * column), 4)
            e.write(target, e.builder.shuffle_vector(tile, tile, own), 4)


@kernel("iiiii")
def accumulate_four(e: Emitter, p: Any, values: Any, d: Any, acc: Any, acc_stride: Any) -> None:
    """Acc[4] += p[4, 64] · 64 float32 values, each bit for bit as ``accumulate_f32``."""
    with e.loop(e.integer(0), d, _TILE) as index:
        targets = [e.at(e.add(acc, e.mul(acc_stride, column)), index, 4) for column in range(_FOUR)]
        sums = [
            [e.variable(e.load(e.add(target, 64 * part), "f32")) for part in range(4)] for target in targets
        ]
        with e.loop(e.integer(0), e.integer(PAGE_TOKENS), 1) as row:
            start = e.at(values, e.builder.add(e.builder.mul(row, d), index), 4)
            vectors = [e.load(e.add(start, 64 * part), "f32") for part in range(4)]
            for column, totals in enumerate(sums):
                weight = e.splat(e.scalar(e.at(p, e.add(row, PAGE_TOKENS * column), 4), "f32"))
                for vector, total in zip(vectors, totals, strict=True):
                    total.set(e.fma(weight, vector, total.get()))
        for target, totals in zip(targets, sums, strict=True):
            for part, total in enumerate(totals):
                e.store(e.add(target, 64 * part), total.get())


@kernel("ii", "f")
def largest_of(e: Emitter, x: Any, n: Any) -> Any:
    """The largest of ``n`` floats, a multiple of 16."""
    found = e.variable(e.load(x, "f32"))
    with e.loop(e.integer(0), n, LANES) as index:
        found.set(e.maximum(e.load(e.at(x, index, 4), "f32"), found.get()))
    return e.largest(found.get())


@part
def page_scores(number, q, keys, scales, count, d, out):
    """Q · key for ``count`` keys of one page and KV head, by KV format number."""
    if number == KV_F32:
        scores_f32(q, keys, scales, count, d, out)
    elif number == KV_BF16:
        scores_bf16(q, keys, scales, count, d, out)
    else:
        scores_i8(q, keys, scales, count, d, out)


@part
def page_accumulate(number, p, values, scales, count, d, acc):
    """Acc += Σ p · value over ``count`` values of one page and KV head, by KV format number."""
    if number == KV_F32:
        accumulate_f32(p, values, scales, count, d, acc)
    elif number == KV_BF16:
        accumulate_f16(p, values, scales, count, d, acc)
    else:
        accumulate_i8(p, values, scales, count, d, acc)


@kernel("iif", "f")
def exponentiate(e: Emitter, x: Any, count: Any, largest: Any) -> Any:
    """x[j] ← exp(x[j] − largest) for j < count, a multiple of 16; returns their sum."""
    shift = e.splat(largest)
    total = e.variable(e.zero())
    with e.loop(e.integer(0), count, LANES) as index:
        address = e.at(x, index, 4)
        value = e.exp(e.builder.fsub(e.load(address, "f32"), shift))
        e.store(address, value)
        total.set(e.fadd(total.get(), value))
    return e.sum(total.get())


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
