"""What ``select`` computes: ``ninfer.sampling.select_token`` of every row's logits.

Shapes: logits [rows, vocabulary] float32 (only read), counts [vocabulary] int32 per row (0: no
penalties), mask bitset [⌈vocabulary / 32⌉] int32 per row (0: none), parameters one record per row. Two
phases: ``scan`` keeps the best CANDIDATES of each slice of the vocabulary, ``draw`` joins the slices and
takes the token, −1 when no id is allowed, −2 when a logit is not a number. Ties go to the lower id; every
penalty operation is rounded to float32; probabilities are float64. Source: ``spec/sampling.yaml``.
"""

from __future__ import annotations

import numpy as np

CANDIDATES = 20
SLICE = 8192

# Descriptor: addresses and strides in bytes. PENDING is 0 or the address of PENDING_WORDS int32 a row.
LOGITS, LOGITS_STRIDE, VOCABULARY, BEST, DRAWN, PENDING, FIELDS = range(7)
# How many drafts stand before a column of a verify block, then their ids in ascending order: to penalties
# they count as output, for the column is only used if all of them were drawn.
PENDING_WORDS = 64

DEAD_END, NOT_A_NUMBER = -1, -2

# One row's sampler.
PARAMETERS = np.dtype(
    [
        ("temperature", np.float64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("presence", np.float32),
        ("frequency", np.float32),
        ("top_k", np.int64),
        ("seed", np.uint64),
        ("position", np.int64),
        ("counts", np.int64),
        ("mask", np.int64),
    ],
    align=True,
)
