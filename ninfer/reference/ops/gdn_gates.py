"""Decay and write strength of a Gated DeltaNet."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus


def gdn_gates(a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """``g = -exp(A_log) · softplus(a + dt_bias)`` (the logarithm of the decay, ≤ 0) and ``β = σ(b)``.

    Shapes: a, b [T, Hv], a_log, dt_bias [Hv] → [T, Hv], [T, Hv].
    """
    return -a_log.exp() * softplus(a + dt_bias), torch.sigmoid(b)
