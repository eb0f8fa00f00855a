"""What the MoE operations compute, for every backend.

``route``: p = softmax(router logits) over all experts; the k largest (ties to the lower id), divided by their
sum. ``expand``: per row and chosen expert, SiLU(W_gate x) ⊙ (W_up x). ``contract``: h += Σ_k p_k · W_down,k
product_k + σ(shared score) · shared, summed in the order of the choice.

Shapes: router logits [rows, experts], choice [rows, k] int64, weights [rows, k] float32, products
[rows, k, expert width], shared [rows, hidden], h [rows, hidden], all float32.
An expert's matrices are three segments (gate, up, down) in the layer's expert table.
"""

from __future__ import annotations

(
    LOGITS,
    LOGITS_STRIDE,
    EXPERTS,
    PER_TOKEN,
    CHOICE,
    WEIGHTS,
    TABLE,
    X,
    X_STRIDE,
    WIDTH,
    HIDDEN,
    PRODUCTS,
    PRODUCTS_STRIDE,
    PERMUTED,
    SHARED,
    SHARED_STRIDE,
    SHARED_SCORE,
    SCORE_STRIDE,
    H,
    H_STRIDE,
    SCRATCH,
    SCRATCH_STRIDE,
    FIELDS,
) = range(23)

GATE, UP, DOWN = range(3)
# Rows of an expert's matrices per task; a multiple of 32 keeps permuted slices whole.
TASK_ROWS = 64
