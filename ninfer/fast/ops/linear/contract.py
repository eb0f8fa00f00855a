"""What ``linear`` computes, for every backend.

``y[c, n] = Σ_k x[c, k] · W[n, k]`` (``mode`` STORE) or ``y[c, n] += …`` (``mode`` ADD, the residual stream).

Shapes: ``x`` [columns, K] float32, ``W`` [N, K] in its artifact format, ``y`` [columns, N] float32.
One call runs several matrices (segments) that read the same activations.
Law 8: the value of y[c, n] depends on x[c] and W[n] alone. On CPU every element is summed the same way at
every width: two accumulators of 16 lanes that take turns over K, fused multiply-add in ascending K, then
their sum and a fixed tree.
"""

from __future__ import annotations

# Fields of one segment: a row range of one stored matrix and where its results go (int64 each).
(
    FORMAT,
    ROWS,
    K,
    BASE,
    BASE_STRIDE,
    HIGH,
    HIGH_STRIDE,
    SCALE,
    SCALE_STRIDE,
    X,
    X_STRIDE,
    Y,
    Y_STRIDE,
    MODE,
    SEGMENT_FIELDS,
) = range(15)

STORE, ADD = 0, 1

# Weight bytes that one task streams: long enough to hide the task counter, short enough to balance threads.
TASK_BYTES = 64 * 1024
