"""What ``embedding`` computes: ``y[r] = float32(W[token[r]])``, exact.

Shapes: ``W`` [vocabulary, N] in its artifact format, ``y`` [rows, N] float32. FORMAT and the planes are as in
``linear``. Row decoding also serves prefill, which multiplies decoded tiles with the platform's GEMM.
"""

from __future__ import annotations

FORMAT, N, BASE, BASE_STRIDE, HIGH, HIGH_STRIDE, SCALE, SCALE_STRIDE, Y, Y_STRIDE, FIELDS = range(11)
