"""``linear`` on CPUs: rows streamed once, against one column or against tiles of four rows and four columns.

One column reads row after row, because several row streams at once lose half of the memory's speed (measured
2026-11-30: bf16 31 GB/s with one stream, 18 with eight, two threads). Tiles ask for the lines of coming rows
in order, some with each group of columns. Both add up the lanes of sixteen elements in one tree.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.linear import formats
from ninfer.fast.ops.linear.contract import (
    ADD,
    BASE,
    BASE_STRIDE,
    FORMAT,
    HIGH,
    HIGH_STRIDE,
    MODE,
    ROWS,
    SCALE,
    SCALE_STRIDE,
    SEGMENT_FIELDS,
    TASK_BYTES,
    X_STRIDE,
    Y_STRIDE,
    K,
    X,
    Y,
)
from ninfer.fast.ops.vector import F32, I64, LANES, Emitter, kernel

_ACCUMULATORS = 2
_TILE = 4  # rows and columns of a tile; the sums of its elements fill one vector
_ROWS_AT_ONCE = 2  # of a tile: with four columns and two accumulators each, half of the registers
_LINE = 64
# How far ahead tiles ask for weights (measured 2026-11-30 with weights beyond the core's own caches, one
# thread, eight columns: 47 GFLOP/s without asking, 63 with 2 to 16 KiB).
_AHEAD = 4096
# Address of the segment; addresses of activations and results; columns; first row and its follower.
_ARGUMENTS = "iiiiii"


class _Segment:
    """The fields of the segment at ``address``, read once."""

    def __init__(self, e: Emitter, address: Any) -> None:
        self._e = e
        self._fields = [e.read(e.add(address, 8 * field), I64, 8) for field in range(SEGMENT_FIELDS)]

    def __getitem__(self, field: int) -> Any:
        return self._fields[field]

    def row(self, row: Any) -> formats.Planes:
        """Addresses of the planes of row ``row``."""
        e = self._e
        pairs = ((BASE, BASE_STRIDE), (HIGH, HIGH_STRIDE), (SCALE, SCALE_STRIDE))
        base, high, scale = (e.add(self[plane], e.mul(row, self[stride])) for plane, stride in pairs)
        return base, high, scale


class _Lines:
    """The lines that a tile asks for in its passes over K, two for each of ``groups`` column groups.

    All passes of a row group together ask for the base plane of four coming rows, in order.
    """

    def __init__(self, e: Emitter, weights: formats.Weights, groups: Any, k: Any) -> None:
        step_bytes = formats.STEP_BYTES[weights] * _ROWS_AT_ONCE
        self._e, self._count = e, max(1, step_bytes // _LINE)
        self._advance = e.builder.udiv(e.integer(step_bytes), groups)
        self._spacing = e.builder.udiv(self._advance, e.integer(self._count))
        self._share = e.mul(e.builder.udiv(k, e.integer(formats.STEP)), self._advance)

    def begin(self, base: Any, number: Any) -> Any:
        """Where pass ``number`` of the tile whose rows begin at ``base`` starts to ask."""
        return self._e.add(self._e.add(base, _AHEAD), self._e.mul(number, self._share))

    def ask(self, begin: Any, index: Any) -> None:
        """Ask for what belongs to the K step at ``index``."""
        e = self._e
        step = e.builder.udiv(index, e.integer(formats.STEP))
        line = e.add(begin, e.mul(step, self._advance))
        for _ in range(self._count):
            e.prefetch(line)
            line = e.add(line, self._spacing)


def _totals(
    e: Emitter,
    weights: formats.Weights,
    rows: Sequence[formats.Planes],
    columns: Sequence[Any],
    k: Any,
    ask: Callable[[Any], None] | None = None,
) -> list[Any]:
    """Column after column, for each row the vector whose lanes add up to the element.

    ``ask`` is called in every K step.
    """
    sums = [[[e.variable(e.zero()) for _ in range(_ACCUMULATORS)] for _ in rows] for _ in columns]
    with e.loop(e.integer(0), k, formats.STEP) as index:
        if ask is not None:
            ask(index)
        decoded = [weights(e, row, index) for row in rows]
        for number in range(formats.STEP // LANES):
            for column, totals in zip(columns, sums, strict=True):
                activation = e.load(e.add(e.at(column, index, 4), 4 * LANES * number), "f32")
                for vectors, accumulators in zip(decoded, totals, strict=True):
                    total = accumulators[number % _ACCUMULATORS]
                    total.set(e.fma(vectors[number], activation, total.get()))
    return [e.fadd(*(total.get() for total in accumulators)) for totals in sums for accumulators in totals]


def _put(e: Emitter, mode: Any, targets: Sequence[Any], values: Sequence[Any]) -> None:
    """Store or add ``values``; targets may be the same where their values are."""
    with e.builder.if_else(e.builder.icmp_signed("==", mode, e.integer(ADD))) as (add, store):
        with add:
            olds = [e.read(target, value.type, 4) for target, value in zip(targets, values, strict=True)]
            for target, old, value in zip(targets, olds, values, strict=True):
                e.write(target, e.fadd(old, value), 4)
        # In STORE mode the old value is not read: it may be poison.
        with store:
            for target, value in zip(targets, values, strict=True):
                e.write(target, value, 4)


def _column(weights: formats.Weights) -> Any:
    """Rows against one column, sixteen sums at a time."""

    @kernel(_ARGUMENTS)
    def column(e: Emitter, address: Any, x: Any, y: Any, _: Any, begin: Any, end: Any) -> None:
        segment = _Segment(e, address)
        totals, results = e.stack(LANES), e.stack(1)
        for member in range(LANES):  # lanes without a row are summed too
            e.store(e.add(totals, 64 * member), e.zero())
        with e.loop(begin, end, LANES) as first:
            here = e.least(e.integer(LANES), e.builder.sub(end, first))
            with e.loop(e.integer(0), here, 1) as member:
                (total,) = _totals(e, weights, [segment.row(e.add(first, member))], [x], segment[K])
                e.store(e.at(totals, member, 64), total)
            sums = e.sums([e.load(e.add(totals, 64 * member), "f32") for member in range(LANES)])
            target = e.at(y, first, 4)
            whole = e.builder.icmp_signed("==", here, e.integer(LANES))
            with e.builder.if_else(whole) as (full, partial):
                with full:
                    _put(e, segment[MODE], [target], [sums])
                with partial:
                    e.store(results, sums)
                    with e.loop(e.integer(0), here, 1) as member:
                        value = e.read(e.at(results, member, 4), F32, 4)
                        _put(e, segment[MODE], [e.at(target, member, 4)], [value])

    return column


def _tiles(weights: formats.Weights) -> Any:
    """A multiple of four rows against any number of columns; the last tile repeats its last column."""

    @kernel(_ARGUMENTS)
    def tiles(e: Emitter, address: Any, x: Any, y: Any, columns: Any, begin: Any, end: Any) -> None:
        segment = _Segment(e, address)
        groups = e.builder.udiv(e.add(columns, _TILE - 1), e.integer(_TILE))
        lines = _Lines(e, weights, groups, segment[K])
        with e.loop(begin, end, _TILE) as first, e.loop(e.integer(0), columns, _TILE) as left:
            last = e.add(columns, -1)
            places = [e.least(e.add(left, place), last) for place in range(_TILE)]
            starts = [e.add(x, e.mul(segment[X_STRIDE], place)) for place in places]
            pairs = []
            for number, row in enumerate(range(0, _TILE, _ROWS_AT_ONCE)):
                rows = [segment.row(e.add(first, row + member)) for member in range(_ROWS_AT_ONCE)]
                passed = e.add(e.builder.udiv(left, e.integer(_ROWS_AT_ONCE)), number)
                ask = functools.partial(lines.ask, lines.begin(segment.row(first)[0], passed))
                pairs.append(_totals(e, weights, rows, starts, segment[K], ask))
            ordered = [
                pair[column * _ROWS_AT_ONCE + row]
                for column in range(_TILE)
                for pair in pairs
                for row in range(_ROWS_AT_ONCE)
            ]
            sums = e.sums(ordered)
            corner = e.at(y, first, 4)
            targets = [e.add(corner, e.mul(segment[Y_STRIDE], place)) for place in places]
            _put(e, segment[MODE], targets, [e.piece(sums, _TILE * column, _TILE) for column in range(_TILE)])

    return tiles


f32_column, f32_tiles = _column(formats.f32), _tiles(formats.f32)
bf16_column, bf16_tiles = _column(formats.bf16), _tiles(formats.bf16)
q8_column, q8_tiles = _column(formats.q8), _tiles(formats.q8)
q6_column, q6_tiles = _column(formats.q6), _tiles(formats.q6)
q5_column, q5_tiles = _column(formats.q5), _tiles(formats.q5)
q4_column, q4_tiles = _column(formats.q4), _tiles(formats.q4)
fp8_column, fp8_tiles = _column(formats.fp8), _tiles(formats.fp8)
nvfp4_column, nvfp4_tiles = _column(formats.nvfp4), _tiles(formats.nvfp4)


@part
def _one_column(number, segment, x, y, begin, end):
    """Rows ``begin..end`` against the column at ``x``, by format number."""
    if number == formats.BF16:
        bf16_column(segment, x, y, 1, begin, end)
    elif number == formats.Q8:
        q8_column(segment, x, y, 1, begin, end)
    elif number == formats.Q4:
        q4_column(segment, x, y, 1, begin, end)
    elif number == formats.Q5:
        q5_column(segment, x, y, 1, begin, end)
    elif number == formats.Q6:
        q6_column(segment, x, y, 1, begin, end)
    elif number == formats.FP8:
        fp8_column(segment, x, y, 1, begin, end)
    elif number == formats.NVFP4:
        nvfp4_column(segment, x, y, 1, begin, end)
    else:
        f32_column(segment, x, y, 1, begin, end)


@part
def _columns(number, segment, x, y, columns, begin, end):
    """Rows ``begin..end``, a multiple of four, against the columns from ``x``, by format number."""
    if number == formats.BF16:
        bf16_tiles(segment, x, y, columns, begin, end)
    elif number == formats.Q8:
        q8_tiles(segment, x, y, columns, begin, end)
    elif number == formats.Q4:
        q4_tiles(segment, x, y, columns, begin, end)
    elif number == formats.Q5:
        q5_tiles(segment, x, y, columns, begin, end)
    elif number == formats.Q6:
        q6_tiles(segment, x, y, columns, begin, end)
    elif number == formats.FP8:
        fp8_tiles(segment, x, y, columns, begin, end)
    elif number == formats.NVFP4:
        nvfp4_tiles(segment, x, y, columns, begin, end)
    else:
        f32_tiles(segment, x, y, columns, begin, end)


@part
def rows_per_task(segment):
    """Rows whose weights fill about TASK_BYTES, in whole tiles where there is more than one."""
    rows = TASK_BYTES // (segment[BASE_STRIDE] + segment[HIGH_STRIDE] + segment[SCALE_STRIDE])
    return rows // LANES * LANES if rows > LANES else max(1, rows)


@part
def task_count(segments, first, last):
    """Tasks of the segments ``first..last`` (exclusive)."""
    total = 0
    for index in range(first, last):
        rows = rows_per_task(segments[index])
        total += (segments[index, ROWS] + rows - 1) // rows
    return total


@part
def run_task(segments, first, last, columns, task):
    """Compute the rows of task number ``task`` for ``columns`` columns."""
    for index in range(first, last):
        segment = segments[index]
        chunk = rows_per_task(segment)
        tasks = (segment[ROWS] + chunk - 1) // chunk
        if task < tasks:
            end = min(segment[ROWS], (task + 1) * chunk)
            run_rows(segment, segment[X], segment[Y], columns, task * chunk, end)
            return
        task -= tasks


@part
def run_rows(segment, x, y, columns, begin, end):
    """Rows ``begin..end`` of one segment against ``columns`` columns at ``x``, results at ``y``."""
    number, address = segment[FORMAT], segment.ctypes.data
    whole = begin if columns == 1 else end - (end - begin) % _TILE
    if whole > begin:
        _columns(number, address, x, y, columns, begin, whole)
    if whole < end:
        for column in range(columns):
            x_column, y_column = x + column * segment[X_STRIDE], y + column * segment[Y_STRIDE]
            _one_column(number, address, x_column, y_column, whole, end)
