"""Causal grouped-query attention over a cache, and its output gate."""

from __future__ import annotations

import torch
from torch import Tensor


def gated_attention(query: Tensor, gate: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """``o_h = softmax(q_h Kᵀ / √D + causal) V · σ(gate_h)`` with the KV head of query head h's group.

    The T queries belong to the last T of S positions. Query heads h·G … h·G + G - 1 share KV head h.

    Shapes: query, gate [T, Hq, D], keys, values [S, Hkv, D] → [T, Hq, D].
    """
    rows, heads, dim = query.shape
    length, kv_heads, _ = keys.shape
    visible = torch.arange(length) <= torch.arange(length - rows, length)[:, None]  # [T, S]
    output = torch.empty_like(query)
    for head in range(heads):
        shared = head * kv_heads // heads
        scores = query[:, head] @ keys[:, shared].T / dim**0.5
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        output[:, head] = weights @ values[:, shared]
    return output * torch.sigmoid(gate)
