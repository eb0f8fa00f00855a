"""The RMS norm and gate at the end of a Gated DeltaNet layer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``y = w · x / √(mean(x²) + ε) · silu(z)``, each head by itself, the norm before the gate.

    Shapes: x, gate (z) [T, heads, D], weight [D] → [T, heads, D]. Unlike ``rms_norm`` the weight is plain.
    """
    return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * silu(gate)
