"""What ``embedding`` computes: ``y[r] = float32(W[token[r]])``, exact.

Shapes: ``W`` [vocabulary, N] in its artifact format, ``y`` [rows, N] float32. FORMAT and the planes are as in
``linear``. Row decoding also serves prefill, which multiplies decoded tiles with the platform's GEMM:
``decode`` writes the rows 0..ROWS of a tile, as float32 or rounded to bfloat16 (ROUNDED) by way of a thread's
scratch.
"""

from __future__ import annotations

FORMAT, N, BASE, BASE_STRIDE, HIGH, HIGH_STRIDE, SCALE, SCALE_STRIDE, Y, Y_STRIDE, FIELDS = range(11)
ROWS, ROUNDED, SCRATCH, SCRATCH_STRIDE, TILE_FIELDS = range(10, 15)

# Decoded floats of one task: a few thousand hide the claim of it.
TASK_FLOATS = 4096
