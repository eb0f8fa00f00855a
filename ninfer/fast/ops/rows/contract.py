"""What ``rows`` computes on CPUs: ``kept[lane][position mod PLACES] = hidden[r]``, exact.

Shapes: ``hidden`` [rows, N] float32; ``kept`` of each lane [PLACES, N] float32, at the address in the row's
KEPT; a row with 0 there is kept nowhere.
"""

from __future__ import annotations

HIDDEN, HIDDEN_STRIDE, N, PLACES, FIELDS = range(5)
