"""The depthwise causal convolution in front of a Gated DeltaNet."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu


def causal_conv(u: Tensor, window: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """``y_t = silu(Σ_j w_j · u_{t-K+1+j})`` per channel; tap K - 1 multiplies the current row.

    ``window`` holds the K - 1 rows before u (zeros at the start of a sequence). Returns y and the window for
    the rows that follow: the last K - 1 rows of u itself, before convolution.

    Shapes: u [T, C], window [K - 1, C], weight [K, C] → [T, C], [K - 1, C].
    """
    taps = weight.shape[0]
    rows = torch.cat([window, u])
    y = torch.zeros_like(u)
    for tap in range(taps):
        y = y + weight[tap] * rows[tap : tap + len(u)]
    return silu(y), rows[len(u) :]
