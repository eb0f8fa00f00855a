"""``embedding`` on CPUs, and the row decoder it shares with prefill; one task is one row."""

from __future__ import annotations

from typing import Any

from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.control import TOKEN
from ninfer.fast.ops.embedding.contract import (
    BASE,
    BASE_STRIDE,
    FORMAT,
    HIGH,
    HIGH_STRIDE,
    SCALE,
    SCALE_STRIDE,
    Y_STRIDE,
    N,
    Y,
)
from ninfer.fast.ops.linear import formats
from ninfer.fast.ops.vector import Emitter, kernel

_INTERLEAVE_LOW = [index // 2 + 16 * (index % 2) for index in range(16)]
_INTERLEAVE_HIGH = [lane + 8 for lane in _INTERLEAVE_LOW]


def _decoder(weights: formats.Weights, evens_first: bool) -> Any:
    @kernel("iiiii")
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


_f32, _bf16, _q8 = (_decoder(weights, False) for weights in (formats.f32, formats.bf16, formats.q8))
_q6, _q5, _q4 = (_decoder(weights, True) for weights in (formats.q6, formats.q5, formats.q4))


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
    else:
        _f32(base, high, scale, y, n)


@part
def run_task(d, rows, task):
    """Row ``task``: the embedding of its token."""
    decode_into(d, rows[task, TOKEN], task)


@part
def decode_into(d, source, target):
    """Stored row ``source`` into row ``target``; with equal numbers, one row of a tile."""
    decode_row(
        d[FORMAT],
        d[BASE] + source * d[BASE_STRIDE],
        d[HIGH] + source * d[HIGH_STRIDE],
        d[SCALE] + source * d[SCALE_STRIDE],
        d[Y] + target * d[Y_STRIDE],
        d[N],
    )
