"""Unit lower triangular systems of the chunked delta rule, by forward substitution.

``x_i = r_i − Σ_{j<i} L_ij x_j`` in place over ``r``. Shapes: L [systems, n, n] (only the strict lower part
is read), r [systems, n, width] float32, width a multiple of 16. One task is one system; every element is
summed in ascending j, so its value does not depend on threads or on the other systems.
"""

from __future__ import annotations

from typing import Any

from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.vector import LANES, Emitter, kernel

SYSTEM, RIGHT, N, WIDTH, COUNT, FIELDS = range(6)


def _substitution(vectors: int) -> Any:
    """``(l, r, n, stride)``: one column tile of ``vectors`` · 16 of one system."""

    @kernel("iiii")
    def substitute(e: Emitter, system: Any, right: Any, n: Any, stride: Any) -> None:
        builder = e.builder
        with e.loop(e.integer(0), n, 1) as row:
            target = builder.add(right, builder.mul(row, stride))
            sums = [e.variable(e.load(e.add(target, 64 * part), "f32")) for part in range(vectors)]
            coefficients = builder.add(system, builder.mul(builder.mul(row, n), e.integer(4)))
            with e.loop(e.integer(0), row, 1) as column:
                factor = e.splat(builder.fneg(e.scalar(e.at(coefficients, column, 4), "f32")))
                source = builder.add(right, builder.mul(column, stride))
                for part in range(vectors):
                    known = e.load(e.add(source, 64 * part), "f32")
                    sums[part].set(e.fma(factor, known, sums[part].get()))
            for part in range(vectors):
                e.store(e.add(target, 64 * part), sums[part].get())

    return substitute


_wide, _narrow = _substitution(4), _substitution(1)


@part
def run_task(d, task):
    """Solve system ``task``."""
    system = d[SYSTEM] + 4 * task * d[N] * d[N]
    right = d[RIGHT] + 4 * task * d[N] * d[WIDTH]
    column = 0
    while column < d[WIDTH]:
        if column + 4 * LANES <= d[WIDTH]:
            _wide(system, right + 4 * column, d[N], 4 * d[WIDTH])
            column += 4 * LANES
        else:
            _narrow(system, right + 4 * column, d[N], 4 * d[WIDTH])
            column += LANES
