"""What the attention operations compute, for every backend.

``append``: per row and KV head, q and k are RMS-normed per head and rotated (partial interleaved MRoPE),
q is scaled by D^-½; k and the raw v are written to the row's page slot in the KV format. Formats that
rotate keys by the normalised Hadamard transform rotate q alike; where values are rotated, their sum is
rotated back before the gate. ``attend``: per row and query head, softmax(q Kᵀ) V over all keys at positions
≤ the row's own, in splits of SPLIT_TOKENS, page by page in ascending order with a running maximum. ``merge``:
joins a row's splits in order, divides, and multiplies by σ(gate).

Shapes: q, gate, y [rows, query heads · D]; k, v [rows, KV heads · D]; pages [page, KV head, 64, D]. Law
8: splits are cut at absolute positions, so a row's result depends on its own length alone.
"""

from __future__ import annotations

# KV formats of the pools (spec/kv_formats.yaml); keys and values in the order in which they are stored.
KV_F32, KV_BF16, KV_INT8, KV_FP8, KV_NVFP4, KV_K8V4 = range(6)
# From here on keys (and the queries that meet them) are rotated, rows are expanded before they are read, and
# values are rotated, so that what is attended must be rotated back.
ROTATED_KEYS, EXPANDED, ROTATED_VALUES = KV_INT8, KV_FP8, KV_NVFP4
GROUP = 64  # elements per int8 scale

SPLIT_TOKENS = 4096
# Queries of one lane and KV head that read a page together, at most: the more, the less a page costs.
QUERIES_TOGETHER = 32
# One partial result: D accumulated values, then maximum and sum, padded to a whole vector.
PARTIAL_PADDING = 16

# Descriptor fields, shared by the three operations of a layer.
(
    Q,
    Q_STRIDE,
    GATE,
    GATE_STRIDE,
    KEYS,
    VALUES,
    KV_STRIDE,
    Q_NORM,
    K_NORM,
    EPS_BITS,
    HEAD_DIM,
    QUERY_HEADS,
    KV_HEADS,
    ROTARY,
    ANGLES,
    KV_FORMAT,
    K_POOL,
    V_POOL,
    K_SCALES,
    V_SCALES,
    PARTIALS,
    MAX_SPLITS,
    Y,
    Y_STRIDE,
    PERMUTED,
    PERMUTED_STRIDE,
    ROUNDED,
    ROUNDED_STRIDE,
    SCRATCH,
    SCRATCH_STRIDE,
    FIELDS,
) = range(31)

# Descriptor of the rotary table: inverse frequencies [pairs] float32, axis of each pair [pairs] int32.
FREQUENCIES, PAIR_AXES, PAIRS, TABLE, TABLE_FIELDS = range(5)
