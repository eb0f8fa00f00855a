"""Operations joined to the two mixers and the two feed-forwards of a decoder layer.

Owns the wiring inside one layer; ``model.py`` and ``mtp.py`` own the residual stream around it. ``weights``
are one layer's parameters by the last part of their logical name (``attention/query``, ``mlp/down``, …).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ninfer.model.config import AttentionConfig, GdnConfig, MoeConfig, TextConfig
from ninfer.reference.ops.attention import gated_attention
from ninfer.reference.ops.causal_conv import causal_conv
from ninfer.reference.ops.gated_norm import gated_norm
from ninfer.reference.ops.gdn_chunked import gdn_chunked
from ninfer.reference.ops.gdn_gates import gdn_gates
from ninfer.reference.ops.gdn_recurrent import gdn_recurrent
from ninfer.reference.ops.l2_norm import l2_norm
from ninfer.reference.ops.linear import linear
from ninfer.reference.ops.moe_experts import moe_experts
from ninfer.reference.ops.moe_route import moe_route
from ninfer.reference.ops.rms_norm import rms_norm
from ninfer.reference.ops.rope import rope
from ninfer.reference.ops.swiglu import swiglu
from ninfer.reference.state import GdnState, KvCache

Weights = Mapping[str, Tensor]


def decoder_layer(
    x: Tensor, weights: Weights, config: TextConfig, positions: Tensor, state: KvCache | GdnState, start: int
) -> Tensor:
    """``x ← x + mixer(norm(x))``, ``x ← x + ffn(norm(x))``; the kind of state decides the mixer.

    Shapes: x [T, H], positions [3, T] → [T, H]. ``start`` is the place of the first row in the sequence.
    """
    normed = rms_norm(x, weights["input_norm"], config.rms_eps)
    if isinstance(state, KvCache):
        assert config.attention is not None
        x = x + attention(normed, weights, config.attention, config.rms_eps, positions, state)
    else:
        assert config.gdn is not None
        x = x + gated_delta_net(normed, weights, config.gdn, config.rms_eps, state, start)
    normed = rms_norm(x, weights["post_attention_norm"], config.rms_eps)
    if config.moe is None:
        return x + dense(normed, weights)
    return x + mixture(normed, weights, config.moe)


def attention(
    x: Tensor, weights: Weights, config: AttentionConfig, eps: float, positions: Tensor, cache: KvCache
) -> Tensor:
    """Gated full attention; appends to the cache. Shapes: x [T, H], positions [3, T] → [T, H]."""

    def project(name: str) -> Tensor:
        return linear(x, weights[f"attention/{name}"]).reshape(len(x), -1, config.head_dim)

    query = rope(rms_norm(project("query"), weights["attention/query_norm"], eps), positions, config.rope)
    key = rope(rms_norm(project("key"), weights["attention/key_norm"], eps), positions, config.rope)
    cache.append(key, project("value"))
    output = gated_attention(query, project("gate"), cache.keys, cache.values)
    return linear(output.flatten(1), weights["attention/output"])


def gated_delta_net(
    x: Tensor, weights: Weights, config: GdnConfig, eps: float, state: GdnState, start: int
) -> Tensor:
    """Gated DeltaNet; advances the state. Shapes: x [T, H] → [T, H]."""

    def project(name: str) -> Tensor:
        return linear(x, weights[f"gdn/{name}"])

    u = torch.cat([project("query"), project("key"), project("value")], dim=-1)
    u, state.window = causal_conv(u, state.window, weights["gdn/convolution"])
    query, key, value = _heads(u, config)
    query, key = l2_norm(query) / config.key_dim**0.5, l2_norm(key)
    decay, beta = gdn_gates(
        project("a_projection"), project("b_projection"), weights["gdn/a_log"], weights["gdn/dt_bias"]
    )
    if len(x) == 1:
        output, state.recurrent = gdn_recurrent(query, key, value, decay, beta, state.recurrent)
    else:
        output, state.recurrent = gdn_chunked(query, key, value, decay, beta, state.recurrent, start)
    gate = project("z").reshape(len(x), config.value_heads, config.value_dim)
    return linear(gated_norm(output, gate, weights["gdn/norm"], eps).flatten(1), weights["gdn/output"])


def _heads(u: Tensor, config: GdnConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [Q | K | V] as heads: [T, C] → query, key [T, Hv, dk], value [T, Hv, dv].

    Value head j reads key head ``floor(j / group)``: each key head stands ``group`` times in a row.
    """
    width, group = config.key_heads * config.key_dim, config.value_heads // config.key_heads
    query, key = (
        rows.reshape(len(u), config.key_heads, config.key_dim).repeat_interleave(group, dim=1)
        for rows in (u[:, :width], u[:, width : 2 * width])
    )
    return query, key, u[:, 2 * width :].reshape(len(u), config.value_heads, config.value_dim)


def dense(x: Tensor, weights: Weights, prefix: str = "mlp") -> Tensor:
    """The dense feed-forward. Shapes: x [T, H] → [T, H]."""
    product = swiglu(linear(x, weights[f"{prefix}/gate"]), linear(x, weights[f"{prefix}/up"]))
    return linear(product, weights[f"{prefix}/down"])


def mixture(x: Tensor, weights: Weights, config: MoeConfig) -> Tensor:
    """The routed experts plus the shared one, which every token uses at its own strength σ(s · x).

    Shapes: x [T, H] → [T, H].
    """

    def each(name: str) -> list[Tensor]:
        return [weights[f"moe/experts/{expert}/{name}"] for expert in range(config.experts)]

    experts, strengths = moe_route(linear(x, weights["moe/router"]), config.experts_per_token)
    routed = moe_experts(x, experts, strengths, each("gate"), each("up"), each("down"))
    shared = dense(x, weights, "moe/shared")
    return routed + torch.sigmoid(linear(x, weights["moe/shared_score"])) * shared
