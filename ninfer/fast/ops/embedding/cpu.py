"""``embedding`` on CPUs, one row a task, and the decoding of prefill's tiles, some rows a task."""

from __future__ import annotations

from typing import Any

from ninfer.fast.ops.attention.rows import store_bf16
from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.control import TOKEN
from ninfer.fast.ops.embedding.contract import (
    BASE,
    BASE_STRIDE,
    FORMAT,
    HIGH,
    HIGH_STRIDE,
    ROUNDED,
    ROWS,
    SCALE,
    SCALE_STRIDE,
    SCRATCH,
    SCRATCH_STRIDE,
    TASK_FLOATS,
    Y_STRIDE,
    N,
    Y,
)
from ninfer.fast.ops.linear import formats
from ninfer.fast.ops.routines import emitted
from ninfer.fast.ops.vector import Emitter

_INTERLEAVE_LOW = [index // 2 + 16 * (index % 2) for index in range(16)]
_INTERLEAVE_HIGH = [lane + 8 for lane in _INTERLEAVE_LOW]


def _decoder(weights: formats.Weights, evens_first: bool) -> Any:
    @emitted(f"embedding.{weights.__name__}", "iiiii")
    def decode(e: Emitter, base: Any, high: Any, scale: Any, y: Any, n: Any) -> None:
        with e.loop(e.integer(0), n, formats.STEP) as index:
            vectors = weights(e, (base, high, scale), index)
            if evens_first:
                vectors = [
                    e.builder.shuffle_vector(vectors[2 * half], vectors[2 * half + 1], e.ints(lanes))
                    for half in range(2)
                    for lanes in (_INTERLEAVE_LOW, _INTERLEAVE_HIGH)
                ]
            for part, vector in enumerate(vectors):
                e.store(e.add(e.at(y, index, 4), 64 * part), vector)

    return decode


_f32, _bf16, _q8, _fp8 = (
    _decoder(weights, False) for weights in (formats.f32, formats.bf16, formats.q8, formats.fp8)
)
_q6, _q5, _q4, _nvfp4 = (
    _decoder(weights, True) for weights in (formats.q6, formats.q5, formats.q4, formats.nvfp4)
)


@part
def decode_row(number, base, high, scale, y, n):
    """One stored row as ``n`` float32 (a multiple of 64) in natural order."""
    if number == formats.BF16:
        _bf16(base, high, scale, y, n)
    elif number == formats.Q8:
        _q8(base, high, scale, y, n)
    elif number == formats.Q4:
        _q4(base, high, scale, y, n)
    elif number == formats.Q5:
        _q5(base, high, scale, y, n)
    elif number == formats.Q6:
        _q6(base, high, scale, y, n)
    elif number == formats.FP8:
        _fp8(base, high, scale, y, n)
    elif number == formats.NVFP4:
        _nvfp4(base, high, scale, y, n)
    else:
        _f32(base, high, scale, y, n)


@part
def run_task(d, rows, task):
    """Row ``task``: the embedding of its token."""
    _decode(d, rows[task, TOKEN], d[Y] + task * d[Y_STRIDE])


@part
def tile_tasks(d):
    """Tasks of ``decode_tile``."""
    rows = _rows_per_task(d)
    return (d[ROWS] + rows - 1) // rows


@part
def decode_tile(d, task, thread):
    """Some stored rows, each into the row of the same number."""
    rows = _rows_per_task(d)
    scratch = d[SCRATCH] + thread * d[SCRATCH_STRIDE]
    for row in range(task * rows, min(d[ROWS], (task + 1) * rows)):
        y = d[Y] + row * d[Y_STRIDE]
        if d[ROUNDED]:
            _decode(d, row, scratch)
            store_bf16(scratch, y, d[N])
        else:
            _decode(d, row, y)


@part
def _rows_per_task(d):
    return max(1, TASK_FLOATS // d[N])


@part
def _decode(d, source, y):
    base = d[BASE] + source * d[BASE_STRIDE]
    high = d[HIGH] + source * d[HIGH_STRIDE]
    decode_row(d[FORMAT], base, high, d[SCALE] + source * d[SCALE_STRIDE], y, d[N])
