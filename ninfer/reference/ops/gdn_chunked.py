"""The gated delta rule by chunks: equal to ``gdn_recurrent``, in matrix products over 64 tokens."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 64


def gdn_chunked(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, state: Tensor, position: int
) -> tuple[Tensor, Tensor]:
    """As ``gdn_recurrent``; ``position`` is the absolute position of the first row.

    Chunks end at absolute multiples of 64, so that a prefix gives one result however its prefill was cut at
    such multiples.

    Shapes: query, key [T, Hv, dk], value [T, Hv, dv], decay (g), beta [T, Hv], state [Hv, dk, dv]
    → [T, Hv, dv], [Hv, dk, dv].
    """
    outputs, start = [], 0
    while start < len(query):
        end = min(len(query), start + CHUNK - (position + start) % CHUNK)
        q, k, v, g, b = (x[start:end].transpose(0, 1) for x in (query, key, value, decay, beta))
        output, state = _chunk(q, k, v, g, b, state)
        outputs.append(output.transpose(0, 1))
        start = end
    return torch.cat(outputs), state


def _chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One chunk of C tokens, heads first: q, k [Hv, C, dk], v [Hv, C, dv], g, beta [Hv, C].

    With Γ the running sum of g and ``D_ij = e^(Γ_i - Γ_j)`` for i ≥ j, the writes δ solve the unit lower
    triangular system ``(I + strictly lower(β k·kᵀ ⊙ D)) δ = β (v - e^Γ k S)``. Then
    ``o = e^Γ q S + lower(q kᵀ ⊙ D) δ`` and ``S' = e^Γ_C S + (e^(Γ_C - Γ) k)ᵀ δ``.
    """
    gamma = g.cumsum(-1)[..., None]  # [Hv, C, 1]
    # The upper triangle is masked before the exponential: it would overflow.
    distance = (gamma - gamma.transpose(1, 2)).tril()
    decays = distance.exp().tril()
    beta = beta[..., None]
    system = (beta * (k @ k.transpose(1, 2)) * decays).tril(-1) + torch.eye(k.shape[1], dtype=k.dtype)
    writes = torch.linalg.solve_triangular(
        system, beta * (v - gamma.exp() * k @ state), upper=False, unitriangular=True
    )
    output = gamma.exp() * q @ state + ((q @ k.transpose(1, 2)) * decays) @ writes
    last = gamma[:, -1:]
    return output, last.exp() * state + ((last - gamma).exp() * k).transpose(1, 2) @ writes
