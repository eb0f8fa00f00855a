"""Random matrices in every packed format beside their values."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer.fast.ops.linear import packing as p

FORMATS = {"bf16": p.BF16, "fp8": p.FP8, "q8": p.Q8, "q6": p.Q6, "q5": p.Q5, "q4": p.Q4, "nvfp4": p.NVFP4}
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def matrix(number: int, rows: int, columns: int, seed: int = 0) -> tuple[p.Packed, Tensor]:
    """A packed matrix with every legal code in it, and its float32 values."""
    random = torch.Generator().manual_seed(seed)

    def codes(low: int, high: int, kind: torch.dtype) -> Tensor:
        return torch.randint(low, high, (rows, columns), generator=random).to(kind)

    if number == p.BF16:
        words = torch.randn((rows, columns), generator=random).bfloat16()
        return p.pack_bf16(words), words.float()
    if number == p.FP8:
        words = codes(0, 256, torch.uint8)
        words[(words & 127) == 127] = 3
        scales = torch.rand(rows, generator=random) + 0.5
        return p.pack_fp8(words, scales), words.view(torch.float8_e4m3fn).float() * scales[:, None]
    if number == p.NVFP4:
        words = codes(0, 16, torch.uint8)
        scales = torch.randint(0, 127, (rows, columns // 16), generator=random).to(torch.uint8)
        factors = 1e-3 * torch.rand(rows, generator=random)
        values = _E2M1[(words & 7).long()] * torch.where(words > 7, -1.0, 1.0)
        wide = scales.view(torch.float8_e4m3fn).float().repeat_interleave(16, 1)
        return p.pack_nvfp4(words, scales, factors), values * wide * factors[:, None]
    bits, group = (8, 32) if number == p.Q8 else (p.BITS[number], 64)
    half = 1 << (bits - 1)
    words = codes(-half + (number == p.Q8), half, torch.int8)
    halves = torch.rand((rows, columns // group), generator=random).half()
    return p.pack_grouped(number, words, halves), words.float() * halves.float().repeat_interleave(group, 1)
