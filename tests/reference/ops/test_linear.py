"""``embedding``, ``linear``, ``swiglu`` and ``lm_head``: plain sums of products."""

from __future__ import annotations

import math

import torch

from ninfer.reference.ops.embedding import embedding
from ninfer.reference.ops.linear import linear
from ninfer.reference.ops.lm_head import lm_head
from ninfer.reference.ops.swiglu import swiglu
from tests.reference.ops.samples import close, normal


def test_embedding_picks_rows() -> None:
    table = normal(9, 4, seed=1)
    close(embedding(torch.tensor([8, 0, 8]), table), torch.stack([table[8], table[0], table[8]]))


def test_linear_is_the_sum_over_columns() -> None:
    x, weight = normal(3, 5, seed=2), normal(7, 5, seed=3)
    wanted = [[sum(x[t, k] * weight[n, k] for k in range(5)) for n in range(7)] for t in range(3)]
    close(linear(x, weight), torch.tensor(wanted))


def test_lm_head_keeps_the_arithmetic_s_dtype() -> None:
    x, weight = normal(2, 5, seed=2, dtype=torch.float64), normal(7, 5, seed=3, dtype=torch.float64)
    found = lm_head(x, weight)
    assert found.dtype == torch.float64
    close(found, torch.einsum("th,vh->tv", x, weight), 1e-15)


def test_swiglu_by_hand() -> None:
    gate, up = torch.tensor([[0.0, 1.0, -2.0]]), torch.tensor([[5.0, 2.0, 3.0]])
    wanted = [0.0, 2 / (1 + math.exp(-1)), -6 / (1 + math.exp(2))]
    close(swiglu(gate, up), torch.tensor([wanted]))
