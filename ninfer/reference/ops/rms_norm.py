"""The zero-centred RMS norm of the backbone."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``y = (1 + w) · x / √(mean(x²) + ε)`` over the last axis.

    Shapes: x [..., N], weight [N] → [..., N]. The stored weight is the distance from 1.
    """
    return (1 + weight) * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
