"""Attention of a prefill chunk: 64 queries of one KV head at a time over their lane's pages.

One task is as many rows as fill 64 lanes with their query group. Queries stand in columns, so scores are
[keys, 64] and outputs [D, 64]: the softmax runs down columns and needs no sum across lanes, and both products
are one register tile with a scalar of the keys or values broadcast. Pages come in ascending order and lanes
never mix, so a row's result depends on its own place alone, wherever its chunk was cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ninfer.fast.ops.attention import contract as c
from ninfer.fast.ops.attention.narrow import expand_page
from ninfer.fast.ops.attention.rows import gate_row, group_scale, rotate
from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.control import BLOCK_TABLE, PAGE_TOKENS, POSITION
from ninfer.fast.ops.permute import evens_first
from ninfer.fast.ops.vector import I32, LANES, VI32, Emitter, element_bytes, kernel
from ninfer.fast.ops.views import clear, floats, integers

QUERIES = 64
_ROW = 4 * QUERIES  # bytes of one row of 64 columns
_TILE = 4  # rows of the register tile
_STEP = 32  # elements of a head summed in one chain


def round_scratch_floats(head_dim: int) -> int:
    """Floats that one thread needs in a round: a page's scores of four rows, a page of keys and of values."""
    return PAGE_TOKENS * (4 + 2 * head_dim)


def scratch_floats(head_dim: int) -> int:
    """Floats that one thread needs: queries, outputs, a page of keys and of values, scores, four rows."""
    return 2 * QUERIES * head_dim + 2 * PAGE_TOKENS * head_dim + PAGE_TOKENS * QUERIES + 4 * QUERIES


@kernel("iiiiiii")
def multiply(
    e: Emitter, a: Any, a_row: Any, a_step: Any, b: Any, k: Any, target: Any, accumulates: Any
) -> None:
    """C[4, 64] = Σ_k A[4, k] · B[k, 64], or += it; A's rows lie ``a_row``, its steps ``a_step`` apart."""
    sums = [[e.variable(e.zero()) for _ in range(4)] for _ in range(_TILE)]
    starts = [e.add(a, e.mul(a_row, row)) for row in range(_TILE)]
    with e.loop(e.integer(0), k, 1) as step:
        line = e.at(b, step, _ROW)
        vectors = [e.load(e.add(line, 64 * part_), "f32") for part_ in range(4)]
        offset = e.builder.mul(step, a_step)
        for start, row in zip(starts, sums, strict=True):
            factor = e.splat(e.scalar(e.builder.add(start, offset), "f32"))
            for vector, total in zip(vectors, row, strict=True):
                total.set(e.fma(factor, vector, total.get()))
    # What C held comes last: sums of sums lose less than one long chain.
    adds = e.splat(e.builder.icmp_signed("!=", accumulates, e.integer(0)))
    for number, row in enumerate(sums):
        for part_, total in enumerate(row):
            place = e.add(target, _ROW * number + 64 * part_)
            held = e.builder.select(adds, e.load(place, "f32"), e.zero())
            e.store(place, e.fadd(held, total.get()))


@kernel("iiiiiii")
def soften(
    e: Emitter, scores: Any, limits: Any, first: Any, seen: Any, maxima: Any, totals: Any, factors: Any
) -> None:
    """One page of the running softmax: scores [seen, 64] become weights, column by column.

    The key of row j is seen by the columns whose limit is at least ``first`` + j. ``factors`` say by how
    much what was summed before shrinks.
    """
    builder = e.builder
    with e.loop(e.integer(0), e.integer(QUERIES), LANES) as column:
        old = e.load(e.at(maxima, column, 4), "f32")
        limit = e.read(e.at(limits, column, 4), VI32, 4)
        largest = e.variable(old)
        start = e.at(scores, column, 4)
        with e.loop(e.integer(0), seen, 1) as key:
            address = e.at(start, key, _ROW)
            place = e.splat(builder.trunc(e.builder.add(first, key), I32))
            visible = builder.icmp_signed("<=", place, limit)
            score = builder.select(visible, e.load(address, "f32"), e.floats([-np.inf] * LANES))
            e.store(address, score)
            largest.set(e.maximum(score, largest.get()))
        new = largest.get()
        factor = e.exp(builder.fsub(old, new))
        total = e.variable(e.fmul(factor, e.load(e.at(totals, column, 4), "f32")))
        with e.loop(e.integer(0), seen, 1) as key:
            address = e.at(start, key, _ROW)
            weight = e.exp(builder.fsub(e.load(address, "f32"), new))
            e.store(address, weight)
            total.set(e.fadd(total.get(), weight))
        e.store(e.at(maxima, column, 4), new)
        e.store(e.at(totals, column, 4), total.get())
        e.store(e.at(factors, column, 4), factor)


@kernel("iii")
def rescale(e: Emitter, x: Any, factors: Any, rows: Any) -> None:
    """X[rows, 64] ← x · factors, column by column."""
    by = [e.load(e.add(factors, 64 * part_), "f32") for part_ in range(4)]
    with e.loop(e.integer(0), rows, 1) as row:
        for part_, factor in enumerate(by):
            address = e.add(e.at(x, row, _ROW), 64 * part_)
            e.store(address, e.fmul(e.load(address, "f32"), factor))


def _expand(kind: str) -> Any:
    """``(source, scales, count, d, target)``: ``count`` stored rows of ``d`` elements as float32."""
    size = element_bytes(kind)

    @kernel("iiiii")
    def expand(e: Emitter, source: Any, scales: Any, count: Any, d: Any, target: Any) -> None:
        with e.loop(e.integer(0), e.builder.mul(count, d), c.GROUP) as index:
            scale = group_scale(e, scales, e.integer(0), d, index) if kind == "i8" else None
            for part_ in range(4):
                lane = e.add(index, LANES * part_)
                value = e.load(e.at(source, lane, size), kind)
                e.store(e.at(target, lane, 4), value if scale is None else e.fmul(value, scale))

    return expand


expand_bf16, expand_f16, expand_i8 = _expand("bf16"), _expand("f16"), _expand("i8")


@part
def chunk_tasks(d, count):
    """Tasks of ``attend_chunk`` for ``count`` rows."""
    rows = QUERIES // (d[c.QUERY_HEADS] // d[c.KV_HEADS])
    return (count + rows - 1) // rows * d[c.KV_HEADS]


@part
def attend_chunk(d, rows, count, task, thread):
    """Some rows of one KV head over all keys up to each row's own, gated."""
    group = d[c.QUERY_HEADS] // d[c.KV_HEADS]
    step, head = QUERIES // group, task % d[c.KV_HEADS]
    first = task // d[c.KV_HEADS] * step
    taken = min(step, count - first)
    size = d[c.HEAD_DIM]
    scratch = d[c.SCRATCH] + thread * d[c.SCRATCH_STRIDE]
    queries, outputs = scratch, scratch + _ROW * size
    keys = outputs + _ROW * size
    values = keys + 4 * PAGE_TOKENS * size
    scores = values + 4 * PAGE_TOKENS * size
    limits = scores + _ROW * PAGE_TOKENS
    state = limits + _ROW
    _gather(d, rows, first, taken, head, queries, limits, state)
    last = rows[first + taken - 1, POSITION]
    block_table = integers(rows[first, BLOCK_TABLE], last // PAGE_TOKENS + 1)
    for begin in range(0, last + 1, PAGE_TOKENS):
        seen = min(PAGE_TOKENS, last + 1 - begin)
        slot = (np.int64(block_table[begin // PAGE_TOKENS]) * d[c.KV_HEADS] + head) * PAGE_TOKENS
        page_keys, page_values = _page(d, slot, seen, keys, values)
        for key in range(0, seen, _TILE):
            for index in range(0, size, _STEP):
                x, q = page_keys + 4 * (key * size + index), queries + _ROW * index
                multiply(x, 4 * size, 4, q, _STEP, scores + _ROW * key, index)
        soften(scores, limits, begin, seen, state, state + _ROW, state + 2 * _ROW)
        adds = np.int64(begin > 0)
        if adds:
            rescale(outputs, state + 2 * _ROW, size)
        for column in range(0, size, _TILE):
            target = outputs + _ROW * column
            multiply(page_values + 4 * column, 4, 4 * size, scores, seen, target, adds)
    _scatter(d, first, taken, head, outputs, state + _ROW)


@part
def _gather(d, rows, first, taken, head, queries, limits, state):
    """Queries in columns and how far each one sees; columns of no row are zeros that see nothing."""
    size, group = d[c.HEAD_DIM], d[c.QUERY_HEADS] // d[c.KV_HEADS]
    limit, column = integers(limits, QUERIES), floats(queries, QUERIES * size)
    maximum = floats(state, QUERIES)
    clear(state + _ROW, QUERIES)
    for lane in range(QUERIES):
        row = first + lane // group
        maximum[lane] = -np.inf
        limit[lane] = -1
        if lane // group < taken:
            limit[lane] = rows[row, POSITION]
            q = floats(d[c.Q] + row * d[c.Q_STRIDE] + 4 * (head * group + lane % group) * size, size)
            for index in range(size):
                column[index * QUERIES + lane] = q[index]
        else:
            for index in range(size):
                column[index * QUERIES + lane] = 0


@part
def _page(d, slot, seen, keys, values):
    """Where the page's keys and values lie as float32: in the pools, or expanded into scratch."""
    size, groups = d[c.HEAD_DIM], d[c.HEAD_DIM] // c.GROUP
    if d[c.KV_FORMAT] == c.KV_F32:
        return d[c.K_POOL] + 4 * slot * size, d[c.V_POOL] + 4 * slot * size
    if d[c.KV_FORMAT] == c.KV_BF16:
        expand_bf16(d[c.K_POOL] + 2 * slot * size, 0, seen, size, keys)
        expand_f16(d[c.V_POOL] + 2 * slot * size, 0, seen, size, values)
    elif d[c.KV_FORMAT] >= c.EXPANDED:
        expand_page(d, slot, seen, keys, values)
    else:
        expand_i8(d[c.K_POOL] + slot * size, d[c.K_SCALES] + 2 * slot * groups, seen, size, keys)
        expand_i8(d[c.V_POOL] + slot * size, d[c.V_SCALES] + 2 * slot * groups, seen, size, values)
    return keys, values


@part
def _scatter(d, first, taken, head, outputs, totals):
    """Columns back into rows: divided by their weights' sum and gated."""
    size, group = d[c.HEAD_DIM], d[c.QUERY_HEADS] // d[c.KV_HEADS]
    output, total = floats(outputs, QUERIES * size), floats(totals, QUERIES)
    for lane in range(taken * group):
        row, offset = first + lane // group, 4 * (head * group + lane % group) * size
        target = d[c.Y] + row * d[c.Y_STRIDE] + offset
        y = floats(target, size)
        for index in range(size):
            y[index] = output[index * QUERIES + lane]
        if d[c.KV_FORMAT] >= c.ROTATED_VALUES:
            rotate(target, size)
        gate_row(target, d[c.GATE] + row * d[c.GATE_STRIDE] + offset, size, np.float32(1) / total[lane])
        if d[c.PERMUTED]:
            evens_first(target, d[c.PERMUTED] + row * d[c.PERMUTED_STRIDE] + offset, size)
