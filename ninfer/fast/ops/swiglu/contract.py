"""What ``swiglu`` computes: ``y = gate · σ(gate) · up``, float32, one row at a time.

Shapes: ``gate``, ``up``, ``y`` [rows, N] float32; where PERMUTED and ROUNDED are set, copies of ``y`` too
(``ninfer.fast.ops.copies``).
"""

from __future__ import annotations

(
    GATE,
    UP,
    STRIDE,
    N,
    Y,
    Y_STRIDE,
    PERMUTED,
    PERMUTED_STRIDE,
    ROUNDED,
    ROUNDED_STRIDE,
    FIELDS,
) = range(11)
