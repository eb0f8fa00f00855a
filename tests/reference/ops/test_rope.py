"""``rope`` against transformers' rotary embedding and against plain trigonometry."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding, apply_rotary_pos_emb

from ninfer.model.config import RopeConfig
from ninfer.reference.ops.rope import rope
from tests.reference.ops.samples import close, normal

PUBLISHED = RopeConfig(theta=1e7, partial_rotary_factor=0.25, mrope_section=(11, 11, 10))


def hf_rope(x: Tensor, positions: Tensor, config: RopeConfig) -> Tensor:
    text = Qwen3_5TextConfig(
        head_dim=x.shape[-1],
        rope_parameters={
            "rope_type": "default",
            "rope_theta": config.theta,
            "partial_rotary_factor": config.partial_rotary_factor,
            "mrope_interleaved": True,
            "mrope_section": list(config.mrope_section),
        },
    )
    cos, sin = Qwen3_5TextRotaryEmbedding(text)(x, positions[:, None])
    rotated, _ = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)
    return rotated[0].transpose(0, 1)


@pytest.mark.parametrize(
    ("dim", "config"),
    [(256, PUBLISHED), (64, RopeConfig(1e7, 0.25, (3, 3, 2))), (64, RopeConfig(1e4, 1.0, (12, 10, 10)))],
    ids=["published", "nano", "whole-head"],
)
def test_equals_transformers(dim: int, config: RopeConfig) -> None:
    x = normal(50, 3, dim, seed=1)
    positions = torch.randint(0, 200000, (3, 50), generator=torch.Generator().manual_seed(2))
    close(rope(x, positions, config), hf_rope(x, positions, config))


def test_by_trigonometry() -> None:
    x = normal(1, 1, 256, seed=3, dtype=torch.float64)
    found = rope(x, torch.tensor([[100], [7], [31]]), PUBLISHED)[0, 0]
    # Pairs go T, H, W, T, H, W, … as long as H and W have pairs left.
    for pair, position in ((0, 100), (1, 7), (2, 31), (29, 31), (30, 100), (31, 7)):
        angle = position * 1e7 ** (-2 * pair / 64)
        a, b = x[0, 0, pair], x[0, 0, pair + 32]
        assert math.isclose(found[pair], a * math.cos(angle) - b * math.sin(angle), rel_tol=1e-12)
        assert math.isclose(found[pair + 32], b * math.cos(angle) + a * math.sin(angle), rel_tol=1e-12)
    assert torch.equal(found[64:], x[0, 0, 64:])


def test_scores_depend_on_differences_of_positions() -> None:
    q, k = normal(1, 1, 256, seed=4, dtype=torch.float64), normal(1, 1, 256, seed=5, dtype=torch.float64)

    def score(at: int, other: int) -> float:
        turned = (rope(x, torch.full((3, 1), p), PUBLISHED) for x, p in ((q, at), (k, other)))
        left, right = turned
        return float((left * right).sum())

    assert math.isclose(score(5, 2), score(1005, 1002), rel_tol=1e-9)
    assert not math.isclose(score(5, 2), score(5, 3), rel_tol=1e-3)
