"""Partial rotary position embedding over three interleaved position axes (MRoPE)."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer.model.config import RopeConfig, rotary_axis


def rope(x: Tensor, positions: Tensor, config: RopeConfig) -> Tensor:
    """Rotate the pairs (j, j + R/2) of each head's first R = D · partial_rotary_factor dimensions.

    Pair j turns by ``p · θ^(-2j/R)`` with p from axis T, H or W (``rotary_axis``); the dimensions from R on
    pass through. Angles are computed in x's dtype: positions of text are exact in float32 up to 2^24.

    Shapes: x [T, heads, D], positions [3, T] → [T, heads, D].
    """
    rotary = int(x.shape[-1] * config.partial_rotary_factor)
    half = rotary // 2
    frequencies = 1 / config.theta ** (torch.arange(0, rotary, 2, dtype=x.dtype) / rotary)
    axes = [rotary_axis(pair, config.mrope_section) for pair in range(half)]
    angles = positions[axes].T.to(x.dtype) * frequencies  # [T, R/2]
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second, rest = x[..., :half], x[..., half:rotary], x[..., rotary:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
