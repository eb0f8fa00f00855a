"""The L2 norm of Gated DeltaNet queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor


def l2_norm(x: Tensor) -> Tensor:
    """``y = x / √(Σ x² + 1e-6)`` over the last axis (the sum, not the mean).

    Shapes: x [..., D] → [..., D].
    """
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
