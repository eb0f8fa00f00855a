"""The kernels of ``linear``: one column against row after row, and tiles of four rows and four columns.

One column reads row after row, because several row streams at once lose half of the memory's speed (measured
2026-11-30: bf16 31 GB/s with one stream, 18 with eight, two threads). Tiles ask for the lines of coming rows
in order, some with each group of columns. Both add up the lanes of an element in one tree. What a lane holds
is the arithmetic's: ``Floats`` decodes weights to float32, ``Pairs`` multiplies bf16 by bf16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ninfer.fast.ops.linear import formats
from ninfer.fast.ops.linear.contract import (
    ADD,
    BASE,
    BASE_STRIDE,
    HIGH,
    HIGH_STRIDE,
    MODE,
    SCALE,
    SCALE_STRIDE,
    SEGMENT_FIELDS,
    X_STRIDE,
    Y_STRIDE,
    K,
)
from ninfer.fast.ops.routines import emitted
from ninfer.fast.ops.vector import F32, I64, LANES, Emitter, Variable

TILE = 4  # rows and columns of a tile; the sums of its elements fill one vector
_LINE = 64
# How far ahead tiles ask for weights (measured 2026-11-30 with weights beyond the core's own caches, one
# thread, eight columns: 47 GFLOP/s without asking, 63 with 2 to 16 KiB).
_AHEAD = 4096
# Address of the segment; addresses of activations and results; columns; first row and its follower.
_ARGUMENTS = "iiiiii"

Ask = Callable[[Any], None] | None
# For each row: its accumulators.
Sums = list[list[Variable]]


class Arithmetic(Protocol):
    """How the products of a K step are made and added."""

    @property
    def name(self) -> str:
        """Names the kernels."""
        ...

    @property
    def accumulators(self) -> int:
        """Vectors that an element's products are spread over."""
        ...

    @property
    def rows_at_once(self) -> int:
        """Rows of a tile that a pass over K takes."""
        ...

    @property
    def step_bytes(self) -> int:
        """Bytes of a step in the base plane."""
        ...

    def step(
        self, e: Emitter, rows: Sequence[formats.Planes], columns: Sequence[Any], index: Any,
        sums: Sequence[Sums],
    ) -> None:  # fmt: skip
        """Add a step's products from ``index`` on; ``columns`` are addresses, ``sums`` by column and row."""


@dataclass(frozen=True, slots=True)
class Floats:
    """Weights of a stored format, decoded to float32, times float32: fused multiply-add in ascending K."""

    weights: formats.Weights
    accumulators = 2
    # With four columns and two accumulators each, half of the registers.
    rows_at_once = 2

    @property
    def name(self) -> str:
        return self.weights.__name__

    @property
    def step_bytes(self) -> int:
        return formats.STEP_BYTES[self.weights]

    def step(
        self, e: Emitter, rows: Sequence[formats.Planes], columns: Sequence[Any], index: Any,
        sums: Sequence[Sums],
    ) -> None:  # fmt: skip
        decoded = [self.weights(e, row, index) for row in rows]
        for number in range(formats.STEP // LANES):
            for column, totals in zip(columns, sums, strict=True):
                activation = e.load(e.add(e.at(column, index, 4), 4 * LANES * number), "f32")
                for vectors, accumulators in zip(decoded, totals, strict=True):
                    total = accumulators[number % self.accumulators]
                    total.set(e.fma(vectors[number], activation, total.get()))


@dataclass(frozen=True, slots=True)
class Pairs:
    """bf16 weights times bf16 activations: a lane adds two neighbours' products at once."""

    name = "pairs"
    accumulators = 1
    rows_at_once = TILE
    step_bytes = 2 * formats.STEP

    def step(
        self, e: Emitter, rows: Sequence[formats.Planes], columns: Sequence[Any], index: Any,
        sums: Sequence[Sums],
    ) -> None:  # fmt: skip
        for number in range(formats.STEP // (2 * LANES)):
            begin = e.add(e.mul(index, 2), 4 * LANES * number)
            weights = [e.load_pairs(e.add(base, begin)) for base, _, _ in rows]
            for column, totals in zip(columns, sums, strict=True):
                activation = e.load_pairs(e.add(column, begin))
                for words, (total,) in zip(weights, totals, strict=True):
                    total.set(e.dot_pairs(words, activation, total.get()))


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
    """The lines that a tile asks for in its passes over K, as many for each of ``groups`` column groups.

    All passes of a row group together ask for the base plane of four coming rows, in order.
    """

    def __init__(self, e: Emitter, arithmetic: Arithmetic, groups: Any, k: Any) -> None:
        step_bytes = arithmetic.step_bytes * arithmetic.rows_at_once
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
    arithmetic: Arithmetic,
    rows: Sequence[formats.Planes],
    columns: Sequence[Any],
    k: Any,
    ask: Ask = None,
) -> list[Any]:
    """Column after column, for each row the vector whose lanes add up to the element.

    ``ask`` is called in every K step.
    """
    sums = [[[e.variable(e.zero()) for _ in range(arithmetic.accumulators)] for _ in rows] for _ in columns]
    with e.loop(e.integer(0), k, formats.STEP) as index:
        if ask is not None:
            ask(index)
        arithmetic.step(e, rows, columns, index, sums)
    return [
        functools.reduce(e.fadd, (total.get() for total in accumulators))
        for totals in sums
        for accumulators in totals
    ]


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


def column_kernel(arithmetic: Arithmetic) -> Any:
    """Rows against one column, sixteen sums at a time."""

    @emitted(f"linear.column.{arithmetic.name}", _ARGUMENTS)
    def column(e: Emitter, address: Any, x: Any, y: Any, _: Any, begin: Any, end: Any) -> None:
        segment = _Segment(e, address)
        totals, results = e.stack(LANES), e.stack(1)
        for member in range(LANES):  # lanes without a row are summed too
            e.store(e.add(totals, 64 * member), e.zero())
        with e.loop(begin, end, LANES) as first:
            here = e.least(e.integer(LANES), e.builder.sub(end, first))
            with e.loop(e.integer(0), here, 1) as member:
                (total,) = _totals(e, arithmetic, [segment.row(e.add(first, member))], [x], segment[K])
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


def tiles_kernel(arithmetic: Arithmetic) -> Any:
    """A multiple of four rows against any number of columns; the last tile repeats its last column."""
    at_once = arithmetic.rows_at_once

    @emitted(f"linear.tiles.{arithmetic.name}", _ARGUMENTS)
    def tiles(e: Emitter, address: Any, x: Any, y: Any, columns: Any, begin: Any, end: Any) -> None:
        segment = _Segment(e, address)
        groups = e.builder.udiv(e.add(columns, TILE - 1), e.integer(TILE))
        lines = _Lines(e, arithmetic, groups, segment[K])
        with e.loop(begin, end, TILE) as first, e.loop(e.integer(0), columns, TILE) as left:
            last = e.add(columns, -1)
            places = [e.least(e.add(left, place), last) for place in range(TILE)]
            starts = [e.add(x, e.mul(segment[X_STRIDE], place)) for place in places]
            parts = []
            for number, row in enumerate(range(0, TILE, at_once)):
                rows = [segment.row(e.add(first, row + member)) for member in range(at_once)]
                # Passes before this one: of each column group as many as there are row groups.
                passed = e.add(e.builder.udiv(left, e.integer(at_once)), number)
                ask = functools.partial(lines.ask, lines.begin(segment.row(first)[0], passed))
                parts.append(_totals(e, arithmetic, rows, starts, segment[K], ask))
            ordered = [
                part[column * at_once + row]
                for column in range(TILE)
                for part in parts
                for row in range(at_once)
            ]
            sums = e.sums(ordered)
            corner = e.at(y, first, 4)
            targets = [e.add(corner, e.mul(segment[Y_STRIDE], place)) for place in places]
            _put(e, segment[MODE], targets, [e.piece(sums, TILE * column, TILE) for column in range(TILE)])

    return tiles
