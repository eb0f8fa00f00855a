"""Random matrices in every packed format beside their values."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer.fast.ops.linear import packing as p
from tools.gpu_check.op_cases.products import legal_planes
from tools.gpu_check.oracle import decoded
from tools.gpu_check.random_model import FORMATS

__all__ = ["FORMATS", "matrix"]


def matrix(number: int, rows: int, columns: int, seed: int = 0) -> tuple[p.Packed, Tensor]:
    """A packed matrix with every legal code in it, and its float32 values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        planes = legal_planes(number, rows, columns)
    return p.repack(number, planes), decoded(number, planes).float()
