"""What ``swiglu`` computes: ``y = gate · σ(gate) · up``, float32, one row at a time.

Shapes: ``gate``, ``up``, ``y`` [rows, N] float32; where PERMUTED is set, ``y'`` with even lanes first in 32.
"""

from __future__ import annotations

GATE, UP, STRIDE, N, Y, Y_STRIDE, PERMUTED, PERMUTED_STRIDE, FIELDS = range(9)
