"""The routed experts of a mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ninfer.reference.ops.linear import linear
from ninfer.reference.ops.swiglu import swiglu


def moe_experts(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    gate: Sequence[Tensor],
    up: Sequence[Tensor],
    down: Sequence[Tensor],
) -> Tensor:
    """``y_t = Σ_j w_tj · down_e swiglu(gate_e x_t, up_e x_t)`` with e = experts[t, j].

    Every row is computed; none is dropped for capacity. The sum runs by ascending expert.

    Shapes: x [T, H], experts [T, k] int64, weights [T, k]; per expert gate, up [I, H], down [H, I] → [T, H].
    """
    y = torch.zeros_like(x)
    for expert in sorted(set(experts.flatten().tolist())):
        rows, slots = torch.nonzero(experts == expert, as_tuple=True)
        product = swiglu(linear(x[rows], gate[expert]), linear(x[rows], up[expert]))
        y[rows] += weights[rows, slots, None] * linear(product, down[expert])
    return y
