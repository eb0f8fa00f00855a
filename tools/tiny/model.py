"""The trainable model: parameters by checkpoint name, forward pass in plain PyTorch, MTP head included.

Owns the formulas only. Matrices multiply in ``act`` (bf16 on GPU, float32 or float64 in checks), the
residual stream, norms, gates and the delta rule stay in float32 or better. Blocks are functions of
tensors, so that one compiled function serves every layer of a kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tools.tiny.attend import CANDIDATES, Layout
from tools.tiny.deltanet import RESET_GATE, chunked
from tools.tiny.shape import Shape

Parameters = dict[str, Tensor]


def init_parameters(shape: Shape, seed: int, device: torch.device | str = "cpu") -> Parameters:
    """Fresh float32 parameters: normal matrices, zero-centred norms, gates spread over time scales."""
    generator = torch.Generator().manual_seed(seed)
    depth_scale = 1 / math.sqrt(2 * shape.layers)
    parameters: Parameters = {}
    for name, size in shape.parameters().items():
        kind = name.removesuffix(".weight").rpartition(".")[2]
        if kind == "A_log":
            value = torch.empty(size).uniform_(1, 16, generator=generator).log()
        elif kind == "dt_bias":
            step = torch.empty(size).uniform_(math.log(1e-3), math.log(1e-1), generator=generator).exp()
            value = step + torch.log(-torch.expm1(-step))  # softplus^-1
        elif name.endswith("linear_attn.norm.weight"):
            value = torch.ones(size)
        elif len(size) == 1:
            value = torch.zeros(size)
        elif kind == "conv1d":
            value = torch.empty(size).uniform_(-0.5, 0.5, generator=generator)
        else:
            scale = depth_scale if kind in ("o_proj", "out_proj", "down_proj") else 1.0
            value = torch.empty(size).normal_(0, 0.02 * scale, generator=generator)
        parameters[name] = value.to(device).requires_grad_()
    return parameters


@dataclass(frozen=True, slots=True)
class Forward:
    """Final-normed hidden states of the text model and of the MTP head, both [B, T, hidden] in ``act``."""

    hidden: Tensor
    draft: Tensor | None


class TinyModel:
    """Runs packed rows of documents through the parameters.

    ``wrap`` is applied to each block function (``torch.compile`` or nothing). Rows must be a multiple of 64
    long. Draft position t sees the hidden state of t and the embedding of token t + 1: it predicts t + 2.
    """

    def __init__(
        self,
        shape: Shape,
        parameters: Parameters,
        *,
        act: torch.dtype = torch.float32,
        attention: str = "dense",
        wrap: Callable[[Callable[..., Tensor]], Callable[..., Tensor]] = lambda function: function,
    ) -> None:
        self.shape, self.parameters, self.act, self.attention = shape, parameters, act, attention
        self._gdn_block = wrap(_gdn_block)
        self._attention_block = wrap(_attention_block)
        self._draft_input = wrap(_draft_input)
        self._norm = wrap(_final_norm)

    def forward(self, tokens: Tensor, starts: Tensor, *, draft: bool = True) -> Forward:
        """Shapes: tokens [B, T] int64; starts [B, T] bool, true at each document's first token."""
        layout = Layout.of(starts, self.attention)
        ages = document_ages(starts, self.shape.taps)
        rope = rotary_table(self.shape, tokens.shape[1], tokens.device)
        p = self.parameters
        embedded = functional.embedding(tokens, p["model.embed_tokens.weight"])
        x = embedded
        for layer in range(self.shape.layers):
            weights = self._layer(f"model.layers.{layer}.")
            if self.shape.is_attention(layer):
                x = self._attention_block(x, weights, self.shape, layout, rope, self.attention, self.act)
            else:
                x = self._gdn_block(x, weights, self.shape, starts, ages, self.act)
        hidden = self._norm(x, p["model.norm.weight"], self.shape.eps)
        if not draft:
            return Forward(hidden.to(self.act), None)
        u = self._draft_input(hidden, embedded, self._layer("mtp."), self.shape.eps, self.act)
        weights = self._layer("mtp.layers.0.")
        u = self._attention_block(u, weights, self.shape, layout, rope, self.attention, self.act)
        drafted = self._norm(u, p["mtp.norm.weight"], self.shape.eps)
        return Forward(hidden.to(self.act), drafted.to(self.act))

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token from normed hidden states."""
        return functional.linear(hidden, self.parameters["model.embed_tokens.weight"].to(hidden.dtype))

    def _layer(self, prefix: str) -> dict[str, Tensor]:
        start = len(prefix)
        return {
            n[start:].removesuffix(".weight"): p for n, p in self.parameters.items() if n.startswith(prefix)
        }


def document_ages(starts: Tensor, taps: int) -> Tensor:
    """[taps - 1, B, T] bool: row s is true where the token s + 1 back belongs to the same document."""
    reach = [~starts]
    for _ in range(taps - 2):
        reach.append(functional.pad(reach[-1], (1, 0))[:, :-1] & ~starts)
    return torch.stack(reach)


def rotary_table(shape: Shape, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, rotary_dim / 2]; attention is relative, so row columns serve as positions."""
    half = shape.rotary_dim // 2
    frequency = shape.theta ** (-torch.arange(half, device=device, dtype=torch.float64) / half)
    angle = torch.arange(length, device=device, dtype=torch.float64)[:, None] * frequency
    return angle.cos().float(), angle.sin().float()


def _rms(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Zero-centred RMSNorm in float32 or better."""
    return _rms(_wide(x), eps) * (1 + weight)


def _final_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _norm(x, weight, eps)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _matmul(x: Tensor, weight: Tensor, act: torch.dtype) -> Tensor:
    return functional.linear(x.to(act), weight.to(act))


def _feed_forward(x: Tensor, w: dict[str, Tensor], eps: float, act: torch.dtype) -> Tensor:
    n = _norm(x, w["post_attention_layernorm"], eps).to(act)
    product = functional.silu(_matmul(n, w["mlp.gate_proj"], act)) * _matmul(n, w["mlp.up_proj"], act)
    return x + _matmul(product, w["mlp.down_proj"], act)


def _gdn_block(
    x: Tensor, w: dict[str, Tensor], shape: Shape, starts: Tensor, ages: Tensor, act: torch.dtype
) -> Tensor:
    batch, length, _ = x.shape
    heads = (batch, length, shape.gdn_heads, shape.gdn_dim)
    n = _norm(x, w["input_layernorm"], shape.eps).to(act)
    u = _wide(_matmul(n, w["linear_attn.in_proj_qkv"], act))
    u = functional.silu(_convolve(u, w["linear_attn.conv1d"], ages))
    q, k, v = (part.reshape(heads) for part in u.split(shape.gdn_width, -1))
    z = _wide(_matmul(n, w["linear_attn.in_proj_z"], act)).reshape(heads)
    beta = _wide(_matmul(n, w["linear_attn.in_proj_b"], act)).sigmoid()
    step = functional.softplus(_wide(_matmul(n, w["linear_attn.in_proj_a"], act)) + w["linear_attn.dt_bias"])
    gate = -w["linear_attn.A_log"].exp() * step
    gate = gate.masked_fill(starts[..., None], RESET_GATE)
    q, k = _unit(q) * shape.gdn_dim**-0.5, _unit(k)
    out = chunked(q, k, v, gate, beta, min(64, length))
    out = _rms(out, shape.eps) * w["linear_attn.norm"] * functional.silu(z)
    x = x + _matmul(out.flatten(-2), w["linear_attn.out_proj"], act)
    return _feed_forward(x, w, shape.eps, act)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _convolve(u: Tensor, weight: Tensor, ages: Tensor) -> Tensor:
    """Depthwise causal convolution as shifted products; taps never reach into another document."""
    taps = weight.shape[-1]
    out = u * weight[:, 0, taps - 1]
    for back in range(1, taps):
        shifted = functional.pad(u, (0, 0, back, 0))[:, : u.shape[1]]
        out = out + shifted * ages[back - 1][..., None] * weight[:, 0, taps - 1 - back]
    return out


def _attention_block(
    x: Tensor, w: dict[str, Tensor], shape: Shape, layout: Layout, rope: tuple[Tensor, Tensor],
    attention: str, act: torch.dtype,
) -> Tensor:  # fmt: skip
    batch, length, _ = x.shape
    n = _norm(x, w["input_layernorm"], shape.eps).to(act)
    both = _matmul(n, w["self_attn.q_proj"], act).reshape(batch, length, shape.query_heads, 2, shape.head_dim)
    q, gate = both[..., 0, :], both[..., 1, :]
    k = _matmul(n, w["self_attn.k_proj"], act).reshape(batch, length, shape.kv_heads, shape.head_dim)
    v = _matmul(n, w["self_attn.v_proj"], act).reshape(batch, length, shape.kv_heads, shape.head_dim)
    q = _rotate(_norm(q, w["self_attn.q_norm"], shape.eps), rope).to(act)
    k = _rotate(_norm(k, w["self_attn.k_norm"], shape.eps), rope).to(act)
    out = CANDIDATES[attention](q, k, v, layout) * gate.sigmoid()
    x = x + _matmul(out.flatten(-2), w["self_attn.o_proj"], act)
    return _feed_forward(x, w, shape.eps, act)


def _rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Split-half rotation of the leading rotary dimensions; the rest of the head passes through."""
    cos, sin = (table[:, None, :] for table in rope)
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


def _draft_input(
    hidden: Tensor, embedded: Tensor, w: dict[str, Tensor], eps: float, act: torch.dtype
) -> Tensor:
    """MTP stem: the embedding of the next token first, then the hidden state. The last column has no next."""
    following = functional.pad(embedded, (0, 0, 0, 1))[:, 1:]
    e = _norm(following, w["pre_fc_norm_embedding"], eps)
    h = _norm(hidden, w["pre_fc_norm_hidden"], eps)
    return _wide(_matmul(torch.cat([e, h], -1), w["fc"], act))
