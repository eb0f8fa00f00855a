"""What a KV format does to a row, for the oracle: a cache whose rows went through the format and back.

A row that lies between two codes goes to either, by a rounding error of whoever computes it. ``StoredCache``
holds the codes that somebody else chose, and checks that they are neighbours of its own.

Source: ``spec/kv_formats.yaml``. Arithmetic of the encoders is float32 on bf16 inputs, as specified, whatever
the precision of the model around them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ninfer import spec
from ninfer.fast.memory.pages import LayerPool
from ninfer.model.config import TextConfig
from ninfer.reference.state import GdnState, KvCache, State

# Decoded keys and values [T, Hkv, D] of one layer, float64, keys in their own basis.
Stored = tuple[Tensor, Tensor]
# A neighbouring code lies this far away at most, as a share of the largest value of the row as it is coded:
# one step of bf16, of fp16, or of int8 with amax / 127; an eighth of an E4M3 code, a third of E2M1's.
_STEPS = {"fp8_row": 0.13, "nvfp4_g16": 0.34}
_STEP = 0.01
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


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
        super().append(*self._round_trips(keys, values))

    def _round_trips(self, keys: Tensor, values: Tensor) -> Stored:
        roles = spec.document("kv_formats")["formats"][self._format]
        return round_trip(keys, **roles["key"]), round_trip(values, **roles["value"])


class StoredCache(RoundTripCache):
    """A cache that takes its rows from ``stored``. Errors: ``AssertionError`` for rows far from its own."""

    stored: Stored

    def append(self, keys: Tensor, values: Tensor) -> None:
        place = slice(self.length, self.length + len(keys))
        given = [rows[place].to(keys.dtype) for rows in self.stored]
        formats = spec.document("kv_formats")["formats"][self._format]
        roles = [formats[role] for role in ("key", "value")]
        for mine, theirs, role in zip(self._round_trips(keys, values), given, roles, strict=True):
            check_neighbours(mine, theirs, **role)
        KvCache.append(self, *given)


def check_neighbours(mine: Tensor, theirs: Tensor, encoding: str, rotated: bool) -> None:
    """Decoded rows [..., D] whose codes are the same or neighbours, as many of them as may be.

    Errors: ``AssertionError``.
    """
    if rotated:  # back to what was coded, where steps of several codes do not add up
        mine, theirs = rotate(mine), rotate(theirs)
    away = (mine - theirs).abs().amax(-1) / mine.abs().amax(-1).clamp_min(1e-20)
    step = _STEPS.get(encoding, _STEP)
    assert away.max() <= step, f"a stored row is {away.max():.1e} of its size away from the reference's"


def state_of(
    config: TextConfig, dtype: torch.dtype, kv_format: str, stored: Mapping[int, Stored] | None = None
) -> State:
    """The state before the first token, with caches in ``kv_format``, on given rows where there are any."""
    layers: list[KvCache | GdnState] = []
    for layer, kind in enumerate(config.layer_types):
        if kind == "full_attention" and stored is not None:
            cache = StoredCache.of(config, dtype, kv_format)
            assert isinstance(cache, StoredCache)
            cache.stored = stored[layer]
            layers.append(cache)
        elif kind == "full_attention":
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
    coders = {"int8_g64": int8_groups, "fp8_row": fp8_rows, "nvfp4_g16": nvfp4_groups}
    stored = exact.to(torch.float32)
    decoded = coders[encoding](rotate(stored) if rotated else stored).to(rows.dtype)
    return rotate(decoded) if rotated else decoded


def stored_rows(pool: LayerPool, kv_format: str, block_table: npt.NDArray[np.int32], count: int) -> Stored:
    """The first ``count`` rows of a lane as its pages hold them."""
    places = np.arange(count)
    at = (block_table[places // 64], slice(None), places % 64)
    keys, values = torch.from_numpy(pool.keys[at]), torch.from_numpy(pool.values[at])
    if kv_format == "float32":
        return keys.double(), values.double()
    if kv_format == "bf16":
        words = torch.from_numpy(pool.keys[at].view(np.int16)).view(torch.bfloat16)
        return words.double(), torch.from_numpy(pool.values[at].view(np.float16)).double()
    roles = spec.document("kv_formats")["formats"][kv_format]
    scales = (torch.from_numpy(plane[at]) for plane in (pool.key_scales, pool.value_scales))
    decoded = []
    for role, codes, scale in zip(("key", "value"), (keys, values), scales, strict=True):
        rows = decode(roles[role]["encoding"], codes, scale)
        decoded.append(rotate(rows) if roles[role]["rotated"] else rows)
    return decoded[0], decoded[1]


def decode(encoding: str, codes: Tensor, scales: Tensor) -> Tensor:
    """Float64 rows of stored codes and scales."""
    if encoding == "int8_g64":
        return (codes.double().unflatten(-1, (-1, 64)) * scales.double()[..., None]).flatten(-2)
    if encoding == "fp8_row":
        return codes.view(torch.float8_e4m3fn).double() * scales.double()
    words = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()
    sizes = _E2M1.double()[words & 7] * torch.where(words & 8 > 0, -1, 1)
    steps = scales.view(torch.float8_e4m3fn).double()[..., None]
    return (sizes.unflatten(-1, (-1, 16)) * steps).flatten(-2)


def fp8_rows(rows: Tensor) -> Tensor:
    """Float32 rows to E4M3 with one fp16 scale each and back."""
    largest = rows.abs().amax(-1, keepdim=True)
    scale = (largest / 448).clamp(2.0**-24, 65504).to(torch.float16).to(torch.float32)
    codes = (rows * (1 / scale)).clamp(-448, 448).to(torch.float8_e4m3fn).to(torch.float32)
    return torch.where(largest > 0, codes * scale, 0)


def nvfp4_groups(rows: Tensor) -> Tensor:
    """Float32 rows to E2M1 with one E4M3 scale per 16, the best of five targets, and back."""
    groups = rows.unflatten(-1, (-1, 16))
    largest = groups.abs().amax(-1, keepdim=True)
    best, least = torch.zeros_like(groups), torch.full_like(largest, torch.inf)
    middles = (_E2M1[1:] + _E2M1[:-1]) / 2
    for target in (6, 4, 4.5, 5, 5.5):
        inverse = torch.tensor(1.0) / torch.tensor(target)
        scale = (largest * inverse).clamp(2.0**-9, 448).to(torch.float8_e4m3fn).to(torch.float32)
        sizes = (groups / scale).abs()[..., None]
        # A tie goes to the even code: from 0.75, 1.75 and 3.5 up, from the other middles down.
        codes = ((sizes > middles) | ((sizes == middles) & (torch.arange(7) % 2 == 1))).sum(-1)
        decoded = torch.copysign(_E2M1[codes], groups) * scale
        error = (groups - decoded).square().sum(-1, keepdim=True)
        best, least = torch.where(error < least, decoded, best), torch.minimum(error, least)
    return torch.where(largest > 0, best, 0).flatten(-2)


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
