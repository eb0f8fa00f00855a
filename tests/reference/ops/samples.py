"""Random inputs for the operations, and the comparison every test of them uses."""

from __future__ import annotations

import torch
from torch import Tensor


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers, the same ones in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def uniform(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers in [0, 1)."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close(found: Tensor, wanted: Tensor, tolerance: float = 2e-6) -> None:
    """Same shape and dtype; the largest error at most ``tolerance`` of the largest value."""
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    assert not found.isnan().any()
    assert (found - wanted).abs().max() <= tolerance * max(1.0, float(wanted.abs().max()))
