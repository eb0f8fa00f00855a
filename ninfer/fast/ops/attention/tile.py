"""Softmax attention of up to four queries over one page of one KV head, in registers.

Keys stand in lanes and are read transposed, [D, 64]; values stand as they are, [64, D]. Either product is
then one tile of four queries and four vectors that takes a scalar of each query a step, and no score is a
sum across lanes. What a query comes to does not depend on the others of its tile, nor on whether there
are any.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from ninfer.fast.ops.control import PAGE_TOKENS
from ninfer.fast.ops.routines import emitted
from ninfer.fast.ops.vector import F32, I32, I64, LANES, VF32, VI32, Emitter, Value

# What a tile reads of a query: where it stands, where its state stands, how many keys of the page it sees. A
# state is D accumulated values, then the largest score and the sum of weights.
QUERY, TARGET, SEEN, ENTRY = range(4)
_LINE = 4 * PAGE_TOKENS  # bytes of one element of all keys of a page
_VECTORS = PAGE_TOKENS // LANES
_STEP = 32  # elements of a head summed in one chain
_COLUMNS = 64  # elements of a head whose values are summed in registers


def _fields(e: Emitter, entries: Value, count: int) -> tuple[list[Value], list[Value], list[Value]]:
    """Queries, targets and keys seen of ``count`` entries."""
    words = [e.read(e.add(entries, 8 * word), I64, 8) for word in range(ENTRY * count)]
    return words[QUERY::ENTRY], words[TARGET::ENTRY], words[SEEN::ENTRY]


def _scores(e: Emitter, queries: list[Value], keys: Value, d: Value, scores: Value) -> None:
    """``scores`` [queries, 64] = q · key, in chains of ``_STEP`` elements that are added in order."""
    with e.loop(e.integer(0), d, _STEP) as first:
        sums = [[e.variable(e.zero()) for _ in range(_VECTORS)] for _ in queries]
        with e.loop(first, e.add(first, _STEP), 1) as index:
            line = e.at(keys, index, _LINE)
            vectors = [e.load(e.add(line, 64 * part), "f32") for part in range(_VECTORS)]
            for query, totals in zip(queries, sums, strict=True):
                factor = e.splat(e.scalar(e.at(query, index, 4), "f32"))
                for vector, total in zip(vectors, totals, strict=True):
                    total.set(e.fma(factor, vector, total.get()))
        begins = e.splat(e.builder.icmp_signed("==", first, e.integer(0)))
        for number, totals in enumerate(sums):
            for part, total in enumerate(totals):
                place = e.add(scores, _LINE * number + 64 * part)
                held = e.builder.select(begins, e.zero(), e.load(place, "f32"))
                e.store(place, e.fadd(held, total.get()))


def _soften(e: Emitter, scores: Value, seen: Value, state: Value) -> Value:
    """Scores of one query become weights; returns by how much what was summed before shrinks."""
    builder = e.builder
    count = e.splat(builder.trunc(seen, I32))
    old = e.splat(e.read(state, F32, 4))
    shown, largest = [], old
    for part in range(_VECTORS):
        lanes = e.ints(range(LANES * part, LANES * (part + 1)))
        score = builder.select(
            builder.icmp_signed("<", lanes, count),
            e.load(e.add(scores, 64 * part), "f32"),
            e.floats([-np.inf] * LANES),
        )
        shown.append(score)
        largest = e.maximum(score, largest)
    highest = e.largest(largest)
    new, total = e.splat(highest), e.zero()
    for part, score in enumerate(shown):
        weight = e.exp(builder.fsub(score, new))
        e.store(e.add(scores, 64 * part), weight)
        total = e.fadd(total, weight)
    factor = e.exp(builder.fsub(old, new))
    before = builder.fmul(
        e.read(e.add(state, 4), F32, 4), builder.extract_element(factor, ir.Constant(I32, 0))
    )
    e.write(state, highest, 4)
    e.write(e.add(state, 4), builder.fadd(before, e.sum(total)), 4)
    return factor


def _accumulate(
    e: Emitter, weights: Value, seen: list[Value], values: Value, d: Value, targets: list[tuple[Value, Value]]
) -> None:
    """Each target ← factor · target + Σ weight · value over the keys that its query sees, ascending."""
    lowest = highest = seen[0]
    for count in seen[1:]:
        lowest = e.least(lowest, count)
        highest = e.builder.select(e.builder.icmp_signed(">", count, highest), count, highest)
    with e.loop(e.integer(0), d, _COLUMNS) as column:
        places = [e.at(target, column, 4) for target, _ in targets]
        sums = [
            [e.variable(e.fmul(factor, e.load(e.add(place, 64 * part), "f32"))) for part in range(4)]
            for place, (_, factor) in zip(places, targets, strict=True)
        ]
        start = e.at(values, column, 4)

        def add(key: Value, masked: bool) -> None:
            line = e.add(start, e.mul(key, e.mul(d, 4)))
            vectors = [e.load(e.add(line, 64 * part), "f32") for part in range(4)]
            for number, (count, totals) in enumerate(zip(seen, sums, strict=True)):
                weight = e.splat(e.scalar(e.at(e.add(weights, _LINE * number), key, 4), "f32"))
                for vector, total in zip(vectors, totals, strict=True):
                    held = total.get()
                    more = e.fma(weight, vector, held)
                    if masked:  # a value that is not seen may be no number, so a weight of 0 is not enough
                        more = e.builder.select(e.builder.icmp_signed("<", key, count), more, held)
                    total.set(more)

        with e.loop(e.integer(0), lowest, 1) as key:
            add(key, False)
        if len(seen) > 1:
            with e.loop(lowest, highest, 1) as key:
                add(key, True)
        for place, totals in zip(places, sums, strict=True):
            for part, total in enumerate(totals):
                e.store(e.add(place, 64 * part), total.get())


def _attend(count: int) -> Any:
    """``(entries, keys, values, d, scores)``: one page for ``count`` queries that see some of it."""

    @emitted(f"attention.attend.{count}", "iiiii")
    def attend(e: Emitter, entries: Value, keys: Value, values: Value, d: Value, scores: Value) -> None:
        queries, targets, seen = _fields(e, entries, count)
        _scores(e, queries, keys, d, scores)
        factors = [
            _soften(e, e.add(scores, _LINE * number), seen[number], e.at(target, d, 4))
            for number, target in enumerate(targets)
        ]
        _accumulate(e, scores, seen, values, d, list(zip(targets, factors, strict=True)))

    return attend


attend_four, attend_two, attend_one = _attend(4), _attend(2), _attend(1)


def _transposed(e: Emitter, rows: list[Value]) -> list[Value]:
    """Sixteen vectors of sixteen words as their columns."""
    lanes = range(4)

    def mix(left: Value, right: Value, mask: list[int]) -> Value:
        return e.builder.shuffle_vector(left, right, e.ints(mask))

    def words(first: int) -> list[int]:
        return [4 * lane + first + step + side for lane in lanes for step in range(2) for side in (0, LANES)]

    def pairs(first: int) -> list[int]:
        return [4 * lane + first + step + side for lane in lanes for side in (0, LANES) for step in range(2)]

    def quads(first: int) -> list[int]:
        return [side + 4 * (first + lane) + word for side in (0, LANES) for lane in (0, 2) for word in lanes]

    # By words and pairs within the four quarters of a vector, then by quarters.
    groups = []
    for first in range(0, LANES, 4):
        a, b, c, d = rows[first : first + 4]
        low, high = (mix(a, b, words(0)), mix(c, d, words(0))), (mix(a, b, words(2)), mix(c, d, words(2)))
        groups.append([mix(*pair, pairs(place)) for pair in (low, high) for place in (0, 2)])
    columns: list[Value] = [None] * LANES
    for word, (a, b, c, d) in enumerate(zip(*groups, strict=True)):
        for odd in range(2):
            first, second = mix(a, b, quads(odd)), mix(c, d, quads(odd))
            columns[4 * odd + word] = mix(first, second, quads(0))
            columns[4 * (odd + 2) + word] = mix(first, second, quads(1))
    return columns


@emitted("attention.transpose_f32", "iiii")
def transpose_f32(e: Emitter, source: Value, count: Value, d: Value, target: Value) -> None:
    """``target`` [D, 64] ← ``count`` float32 keys of ``d`` elements, or more, up to a multiple of 16."""
    with e.loop(e.integer(0), count, LANES) as key, e.loop(e.integer(0), d, LANES) as index:
        start = e.at(source, e.add(e.mul(key, d), index), 4)
        rows = [e.load(e.add(start, e.mul(d, 4 * row)), "f32") for row in range(LANES)]
        place = e.at(e.at(target, index, _LINE), key, 4)
        for number, column in enumerate(_transposed(e, rows)):
            e.store(e.add(place, _LINE * number), column)


@emitted("attention.transpose_bf16", "iiii")
def transpose_bf16(e: Emitter, source: Value, count: Value, d: Value, target: Value) -> None:
    """As ``transpose_f32`` from bfloat16 keys, two of whose elements move as one word."""
    builder = e.builder
    with e.loop(e.integer(0), count, LANES) as key, e.loop(e.integer(0), d, 2 * LANES) as index:
        start = e.at(source, e.add(e.mul(key, d), index), 2)
        rows = [e.read(e.add(start, e.mul(d, 2 * row)), VI32, 2) for row in range(LANES)]
        place = e.at(e.at(target, index, _LINE), key, 4)
        for number, column in enumerate(_transposed(e, rows)):
            even = builder.shl(column, e.ints([16] * LANES))
            odd = builder.and_(column, e.ints([-65536] * LANES))
            for side, word in enumerate((even, odd)):
                e.store(e.add(place, _LINE * (2 * number + side)), builder.bitcast(word, VF32))
