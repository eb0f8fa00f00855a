"""``linear`` on CPUs: one weight row at a time, streamed once, against one or four columns.

Rows are read linearly because several row streams at once lose half of the memory's speed (measured
2026-11-30: bf16 31 GB/s with one stream, 18 with eight, two threads).
"""

from __future__ import annotations

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
    TASK_BYTES,
    X_STRIDE,
    Y_STRIDE,
    K,
    X,
    Y,
)
from ninfer.fast.ops.vector import F32, Emitter, kernel

_ACCUMULATORS = 4


def _dot(weights: formats.Weights, columns: int) -> Any:
    """``(base, high, scale, x, x_stride, k, y, y_stride, mode)``: y[c] for 1 row and ``columns`` columns."""

    @kernel("iiiiiiiii")
    def dot(
        e: Emitter,
        base: Any,
        high: Any,
        scale: Any,
        x: Any,
        x_stride: Any,
        k: Any,
        y: Any,
        y_stride: Any,
        mode: Any,
    ) -> None:
        starts = [e.add(x, e.mul(x_stride, column)) for column in range(columns)]
        sums = [[e.variable(e.zero()) for _ in range(_ACCUMULATORS)] for _ in range(columns)]
        with e.loop(e.integer(0), k, formats.STEP) as index:
            vectors = weights(e, (base, high, scale), index)
            for column in range(columns):
                start = e.at(starts[column], index, 4)
                for part, vector in enumerate(vectors):
                    activation = e.load(e.add(start, 64 * part), "f32")
                    total = sums[column][part]
                    total.set(e.fma(vector, activation, total.get()))
        adds = e.builder.icmp_signed("==", mode, e.integer(ADD))
        for column in range(columns):
            first, second, third, fourth = (total.get() for total in sums[column])
            result = e.sum(e.fadd(e.fadd(first, second), e.fadd(third, fourth)))
            target = e.add(y, e.mul(y_stride, column))
            # In STORE mode the old value is not read: it may be poison.
            with e.builder.if_else(adds) as (add, store):
                with add:
                    e.write(target, e.builder.fadd(e.read(target, F32, 4), result), 4)
                with store:
                    e.write(target, result, 4)

    return dot


f32_1, f32_4 = _dot(formats.f32, 1), _dot(formats.f32, 4)
bf16_1, bf16_4 = _dot(formats.bf16, 1), _dot(formats.bf16, 4)
q8_1, q8_4 = _dot(formats.q8, 1), _dot(formats.q8, 4)
q6_1, q6_4 = _dot(formats.q6, 1), _dot(formats.q6, 4)
q5_1, q5_4 = _dot(formats.q5, 1), _dot(formats.q5, 4)
q4_1, q4_4 = _dot(formats.q4, 1), _dot(formats.q4, 4)


@part
def one_column(number, base, high, scale, x, k, y, mode):
    """One row against one column, by format number."""
    if number == formats.BF16:
        bf16_1(base, high, scale, x, 0, k, y, 0, mode)
    elif number == formats.Q8:
        q8_1(base, high, scale, x, 0, k, y, 0, mode)
    elif number == formats.Q4:
        q4_1(base, high, scale, x, 0, k, y, 0, mode)
    elif number == formats.Q5:
        q5_1(base, high, scale, x, 0, k, y, 0, mode)
    elif number == formats.Q6:
        q6_1(base, high, scale, x, 0, k, y, 0, mode)
    else:
        f32_1(base, high, scale, x, 0, k, y, 0, mode)


@part
def four_columns(number, base, high, scale, x, x_stride, k, y, y_stride, mode):
    """One row against four columns, by format number."""
    if number == formats.BF16:
        bf16_4(base, high, scale, x, x_stride, k, y, y_stride, mode)
    elif number == formats.Q8:
        q8_4(base, high, scale, x, x_stride, k, y, y_stride, mode)
    elif number == formats.Q4:
        q4_4(base, high, scale, x, x_stride, k, y, y_stride, mode)
    elif number == formats.Q5:
        q5_4(base, high, scale, x, x_stride, k, y, y_stride, mode)
    elif number == formats.Q6:
        q6_4(base, high, scale, x, x_stride, k, y, y_stride, mode)
    else:
        f32_4(base, high, scale, x, x_stride, k, y, y_stride, mode)


@part
def rows_per_task(segment):
    """Rows whose weights fill about TASK_BYTES."""
    return max(1, TASK_BYTES // (segment[BASE_STRIDE] + segment[HIGH_STRIDE] + segment[SCALE_STRIDE]))


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
def run_rows(segment, x, y_base, columns, begin, end):
    """Rows ``begin..end`` of one segment against ``columns`` columns at ``x``, results at ``y_base``."""
    number, k, mode = segment[FORMAT], segment[K], segment[MODE]
    x_stride, y_stride = segment[X_STRIDE], segment[Y_STRIDE]
    for row in range(begin, end):
        base = segment[BASE] + row * segment[BASE_STRIDE]
        high = segment[HIGH] + row * segment[HIGH_STRIDE]
        scale = segment[SCALE] + row * segment[SCALE_STRIDE]
        y = y_base + 4 * row
        column = 0
        while column + 4 <= columns:
            four_columns(
                number,
                base,
                high,
                scale,
                x + column * x_stride,
                x_stride,
                k,
                y + column * y_stride,
                y_stride,
                mode,
            )
            column += 4
        while column < columns:
            one_column(number, base, high, scale, x + column * x_stride, k, y + column * y_stride, mode)
            column += 1
