"""The gated delta rule by its definition, one token after the other."""

from __future__ import annotations

import torch
from torch import Tensor


def gdn_recurrent(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """For each token: ``S ← e^g S``, ``δ = β (v - Sᵀ k)``, ``S ← S + k δᵀ``, ``o = Sᵀ q``.

    The error δ is measured against the already decayed state. Queries and keys are L2-normed and the queries
    scaled by 1/√dk before they come here. Returns the outputs and the state after the last token.

    Shapes: query, key [T, Hv, dk], value [T, Hv, dv], decay (g), beta [T, Hv], state [Hv, dk, dv]
    → [T, Hv, dv], [Hv, dk, dv].
    """
    outputs = []
    for q, k, v, g, b in zip(query, key, value, decay, beta, strict=True):
        state = g.exp()[:, None, None] * state
        delta = b[:, None] * (v - _read(state, k))
        state = state + k[:, :, None] * delta[:, None, :]
        outputs.append(_read(state, q))
    return torch.stack(outputs), state


def _read(state: Tensor, address: Tensor) -> Tensor:
    """``Sᵀ x`` for every head: [Hv, dk, dv], [Hv, dk] → [Hv, dv]."""
    return (state.transpose(1, 2) @ address[:, :, None])[:, :, 0]
