"""``rms_norm``, ``gated_norm`` and ``l2_norm`` against transformers' modules and their own formulas."""

from __future__ import annotations

import math

import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNorm, Qwen3_5RMSNormGated, l2norm

from ninfer.reference.ops.gated_norm import gated_norm
from ninfer.reference.ops.l2_norm import l2_norm
from ninfer.reference.ops.rms_norm import rms_norm
from tests.reference.ops.samples import close, normal


def test_rms_norm_is_zero_centred() -> None:
    x, weight = normal(7, 3, 24, seed=1), normal(24, seed=2)
    module = Qwen3_5RMSNorm(24, eps=1e-6)
    module.weight.data = weight
    close(rms_norm(x, weight, 1e-6), module(x).detach())


def test_rms_norm_by_hand() -> None:
    # mean of squares (9 + 16) / 2 = 12.5; weights 1 + 0 and 1 + 1.
    found = rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([0.0, 1.0]), 0.0)
    close(found, torch.tensor([[3 / math.sqrt(12.5), 8 / math.sqrt(12.5)]]))


def test_rms_norm_s_epsilon_stands_inside_the_root() -> None:
    close(
        rms_norm(torch.zeros(1, 4) + 1e-3, torch.zeros(4), 1e-6), torch.full((1, 4), 1e-3 / math.sqrt(2e-6))
    )


def test_gated_norm_norms_before_the_gate_with_a_plain_weight() -> None:
    x, gate, weight = normal(5, 4, 32, seed=3), normal(5, 4, 32, seed=4), normal(32, seed=5)
    module = Qwen3_5RMSNormGated(32, eps=1e-6)
    module.weight.data = weight
    close(gated_norm(x, gate, weight, 1e-6), module(x, gate).detach())


def test_l2_norm_takes_the_sum() -> None:
    x = normal(5, 4, 32, seed=6)
    close(l2_norm(x), l2norm(x))
    close(l2_norm(torch.tensor([3.0, 4.0])), torch.tensor([0.6, 0.8]))
    close(l2_norm(torch.tensor([1e-3, 0.0])), torch.tensor([math.sqrt(0.5), 0.0]))
