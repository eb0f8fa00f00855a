"""The output head."""

from __future__ import annotations

from torch import Tensor

from ninfer.reference.ops.linear import linear


def lm_head(hidden: Tensor, weight: Tensor) -> Tensor:
    """Logits of every id, in the arithmetic's own dtype (never rounded to fewer bits: that would make ties).

    Shapes: hidden [T, H] after the final norm, weight [V, H] → [T, V].
    """
    return linear(hidden, weight)
