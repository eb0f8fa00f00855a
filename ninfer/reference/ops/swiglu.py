"""The gated product inside a feed-forward layer."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import silu


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``y = silu(gate) · up``.

    Shapes: gate, up [T, N] → [T, N].
    """
    return silu(gate) * up
