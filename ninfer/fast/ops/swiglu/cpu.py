"""``swiglu`` on CPUs; one task is up to TASK_ELEMENTS of one row."""

from __future__ import annotations

from typing import Any

from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.copies import copy_row
from ninfer.fast.ops.swiglu.contract import GATE, PERMUTED, STRIDE, UP, Y_STRIDE, N, Y
from ninfer.fast.ops.vector import Emitter, kernel

TASK_ELEMENTS = 1024


@kernel("iiii")
def product(e: Emitter, gate: Any, up: Any, y: Any, n: Any) -> None:
    """``n`` elements (a multiple of 16)."""
    with e.loop(e.integer(0), n, 16) as index:
        value = e.load(e.at(gate, index, 4), "f32")
        active = e.fmul(value, e.sigmoid(value))
        e.store(e.at(y, index, 4), e.fmul(active, e.load(e.at(up, index, 4), "f32")))


@part
def task_count(d, rows):
    """Tasks for ``rows`` rows."""
    return rows * ((d[N] + TASK_ELEMENTS - 1) // TASK_ELEMENTS)


@part
def run_task(d, task):
    """One slice of one row."""
    slices = (d[N] + TASK_ELEMENTS - 1) // TASK_ELEMENTS
    row, begin = task // slices, (task % slices) * TASK_ELEMENTS
    count = min(TASK_ELEMENTS, d[N] - begin)
    source, y = row * d[STRIDE] + 4 * begin, d[Y] + row * d[Y_STRIDE] + 4 * begin
    product(d[GATE] + source, d[UP] + source, y, count)
    copy_row(d, PERMUTED, row, begin, y, count)
