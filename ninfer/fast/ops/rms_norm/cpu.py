"""``rms_norm`` on CPUs; one task is one row."""

from __future__ import annotations

from typing import Any

from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.copies import copy_row
from ninfer.fast.ops.rms_norm.contract import (
    EPS_BITS,
    PERMUTED,
    WEIGHT,
    X_STRIDE,
    Y_STRIDE,
    N,
    X,
    Y,
)
from ninfer.fast.ops.vector import F32, I32, Emitter, kernel


@kernel("iiiii")
def normalise(e: Emitter, x: Any, weight: Any, y: Any, n: Any, eps_bits: Any) -> None:
    """One row: y = w · x / √(mean(x²) + eps); ``n`` is a multiple of 16."""
    total = e.variable(e.zero())
    with e.loop(e.integer(0), n, 16) as index:
        value = e.load(e.at(x, index, 4), "f32")
        total.set(e.fma(value, value, total.get()))
    count = e.builder.sitofp(n, F32)
    eps = e.builder.bitcast(e.builder.trunc(eps_bits, I32), F32)
    mean = e.builder.fadd(e.builder.fdiv(e.sum(total.get()), count), eps)
    scale = e.splat(e.builder.fdiv(e.number(1.0), e.call("llvm.sqrt.f32", F32, mean)))
    with e.loop(e.integer(0), n, 16) as index:
        value = e.fmul(e.load(e.at(x, index, 4), "f32"), scale)
        e.store(e.at(y, index, 4), e.fmul(value, e.load(e.at(weight, index, 4), "f32")))


@part
def run_task(d, task):
    """Row ``task``."""
    y = d[Y] + task * d[Y_STRIDE]
    normalise(d[X] + task * d[X_STRIDE], d[WEIGHT], y, d[N], d[EPS_BITS])
    copy_row(d, PERMUTED, task, 0, y, d[N])
