"""The gated delta rule over a prefill chunk, 64 tokens at a time in batched matrix products.

Chunks end at absolute multiples of 64, so that a state does not depend on how its prefill was cut there.
Source: Yang et al., Gated Delta Networks (2024), section 3.3 (WY form).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from ninfer.fast.ops.gdn.contract import L2_EPS
from ninfer.fast.program.parameters import GdnWeights
from ninfer.model.config import GdnConfig

CHUNK = 64


Solve = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class ChunkRows:
    """A chunk's inputs: convolved [T, channels] as [Q | K | V], a, b [T, value heads], z [T, value rows]."""

    convolved: Tensor
    a: Tensor
    b: Tensor
    z: Tensor


def delta_chunk(
    rows: ChunkRows,
    weights: GdnWeights,
    config: GdnConfig,
    eps: float,
    state: Tensor,
    start: int,
    solve: Solve,
) -> Tensor:
    """Mixed and gated rows [T, value heads · d_v]; ``state`` [value heads, d_k, d_v] advances in place.

    ``start`` is the place of the first row; ``solve`` takes unit lower triangular systems (the diagonal is
    not read) and their right sides, which it may overwrite.
    """
    convolved, a, b, z = rows.convolved, rows.a, rows.b, rows.z
    count, heads = len(convolved), config.value_heads
    query, key, value = _heads(convolved, config)
    decay = -torch.exp(torch.from_numpy(weights.a_log)) * softplus(a + torch.from_numpy(weights.dt_bias))
    beta = torch.sigmoid(b)
    parts = (query, key, value, decay.T.contiguous(), beta.T.contiguous())
    outputs = []
    head = min(count, -start % CHUNK)
    whole = (count - head) // CHUNK * CHUNK
    for begin, end, size in ((0, head, head), (head, head + whole, CHUNK), (head + whole, count, 0)):
        if end > begin:
            q, k, v, g, strength = (part[:, begin:end] for part in parts)
            outputs.append(_chunks(q, k, v, g, strength, size or end - begin, state, solve))
    output = torch.cat(outputs, 1).transpose(0, 1)  # [T, heads, d_v]
    normed = output * torch.rsqrt(output.square().mean(-1, keepdim=True) + eps)
    gated = normed * torch.from_numpy(weights.norm) * silu(z.view(count, heads, config.value_dim))
    return gated.reshape(count, -1)


def _heads(convolved: Tensor, config: GdnConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Unit queries (scaled by d_k^-½), unit keys and values by value head: [heads, T, d]."""
    width, group = config.key_heads * config.key_dim, config.value_heads // config.key_heads
    query, key = (
        part.reshape(len(convolved), config.key_heads, config.key_dim)
        for part in (convolved[:, :width], convolved[:, width : 2 * width])
    )
    query, key = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + L2_EPS) for part in (query, key))
    query = query * config.key_dim**-0.5
    value = convolved[:, 2 * width :].reshape(len(convolved), config.value_heads, config.value_dim)
    query, key = (part.repeat_interleave(group, 1).transpose(0, 1) for part in (query, key))
    return query.contiguous(), key.contiguous(), value.transpose(0, 1).contiguous()


def _chunks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor,
    size: int,
    state: Tensor,
    solve: Solve,
) -> Tensor:
    """Chunks of ``size`` tokens; ``state`` advances in place.

    With Γ the running sum of the decay inside a chunk and D_ij = e^(Γ_i − Γ_j) for i ≥ j: U and W solve
    (I + strictly lower(β k kᵀ ⊙ D)) [U | W] = β [v | e^Γ k]; then V' = U − W S,
    o = e^Γ q S + lower(q kᵀ ⊙ D) V' and S' = e^Γ_C S + (e^(Γ_C − Γ) k)ᵀ V'.
    """
    heads = len(query)
    q, k, v = (part.reshape(heads, -1, size, part.shape[-1]) for part in (query, key, value))
    gamma = decay.reshape(heads, -1, size).cumsum(-1)[..., None]  # [heads, chunks, C, 1]
    strength = beta.reshape(heads, -1, size, 1)
    decays = (gamma - gamma.transpose(-1, -2)).tril().exp().tril()
    system = strength * (k @ k.transpose(-1, -2)) * decays
    grown = gamma.exp()
    solved = solve(system, strength * torch.cat([v, grown * k], -1))
    written, read = solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]
    local = (q @ k.transpose(-1, -2)) * decays
    last = gamma[:, :, -1:]
    scaled_query, scaled_key = grown * q, (last - gamma).exp() * k
    outputs = []
    for chunk in range(q.shape[1]):
        values = written[:, chunk] - read[:, chunk] @ state
        outputs.append(scaled_query[:, chunk] @ state + local[:, chunk] @ values)
        state.mul_(last[:, chunk].exp()).baddbmm_(scaled_key[:, chunk].transpose(1, 2), values)
    return torch.cat(outputs, 1)
