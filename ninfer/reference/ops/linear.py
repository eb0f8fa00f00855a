"""A matrix product without bias."""

from __future__ import annotations

from torch import Tensor


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``y = x Wᵀ``.

    Shapes: x [T, K], weight [N, K] → [T, N].
    """
    return x @ weight.T
