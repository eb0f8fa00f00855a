"""What ``rms_norm`` computes: ``y = (1 + w) ⊙ x / √(mean(x²) + eps)``, float32, one row at a time.

Shapes: ``x`` [rows, N] float32, ``w`` [N] float32 holding 1 + w, ``y`` [rows, N] and, where PERMUTED and
ROUNDED are set, its copies (``ninfer.fast.ops.copies``). Rows are padded with zeros to a multiple of 64.
"""

from __future__ import annotations

# Descriptor fields: addresses, strides in bytes, N elements, eps as float32 bits.
(
    X,
    X_STRIDE,
    WEIGHT,
    N,
    EPS_BITS,
    Y,
    Y_STRIDE,
    PERMUTED,
    PERMUTED_STRIDE,
    ROUNDED,
    ROUNDED_STRIDE,
    FIELDS,
) = range(12)
