"""What a KV format does to a row, for the oracle: a cache whose rows went through the format and back.

Source: ``spec/kv_formats.yaml``. Arithmetic of the encoders is float32 on bf16 inputs, as specified, whatever
the precision of the model around them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer import spec
from ninfer.model.config import TextConfig
from ninfer.reference.state import GdnState, KvCache, State


class RoundTripCache(KvCache):
    """A reference cache of one attention layer that holds what decoding a stored row gives."""

    _format: str

    @classmethod
    def of(cls, config: TextConfig, dtype: torch.dtype, kv_format: str) -> RoundTripCache:
        assert config.attention is not None
        cache = cls(config.attention, dtype)
        cache._format = kv_format
        return cache

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Add rows [T, Hkv, D] as the format returns them."""
        roles = spec.document("kv_formats")["formats"][self._format]
        stored = (round_trip(rows, **roles[role]) for role, rows in (("key", keys), ("value", values)))
        super().append(*stored)


def state_of(config: TextConfig, dtype: torch.dtype, kv_format: str) -> State:
    """The state before the first token, with caches in ``kv_format``."""
    layers: list[KvCache | GdnState] = []
    for kind in config.layer_types:
        if kind == "full_attention":
            layers.append(RoundTripCache.of(config, dtype, kv_format))
        else:
            assert config.gdn is not None
            layers.append(GdnState(config.gdn, dtype))
    return State(0, layers)


def round_trip(rows: Tensor, encoding: str, rotated: bool) -> Tensor:
    """Rows [..., D] through an encoding and back, in their own dtype."""
    if encoding == "float32":
        return rows
    exact = rows.to(torch.bfloat16)
    if encoding == "bf16":
        return exact.to(rows.dtype)
    if encoding == "fp16":
        return exact.to(torch.float16).to(rows.dtype)
    assert encoding == "int8_g64", f"no round trip for {encoding}"
    stored = exact.to(torch.float32)
    decoded = int8_groups(rotate(stored) if rotated else stored).to(rows.dtype)
    return rotate(decoded) if rotated else decoded


def int8_groups(rows: Tensor) -> Tensor:
    """Float32 rows to int8 with one fp16 scale per 64 and back."""
    groups = rows.unflatten(-1, (-1, 64))
    scale = (groups.abs().amax(-1, keepdim=True) / 127).to(torch.float16).to(torch.float32)
    inverse = torch.where(scale > 0, 1 / scale, 0)
    codes = torch.round(groups * inverse).clamp(-127, 127)
    return (codes * scale).flatten(-2)


def rotate(rows: Tensor) -> Tensor:
    """The normalised Sylvester–Hadamard transform of the last axis, in natural order; its own inverse."""
    size, stride = rows.shape[-1], 1
    while stride < size:
        pairs = rows.unflatten(-1, (-1, 2, stride))
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        rows = torch.stack([low + high, low - high], -2).flatten(-3)
        stride *= 2
    return rows * torch.tensor(size**-0.5, dtype=rows.dtype)
