"""``causal_conv`` against torch's convolution and in pieces."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import conv1d, silu

from ninfer.reference.ops.causal_conv import causal_conv
from tests.reference.ops.samples import close, normal


def test_equals_torch_s_depthwise_convolution() -> None:
    u, weight = normal(30, 12, seed=1), normal(4, 12, seed=2)
    y, _ = causal_conv(u, torch.zeros(3, 12), weight)
    padded = torch.cat([torch.zeros(3, 12), u]).T[None]
    close(y, silu(conv1d(padded, weight.T[:, None], groups=12))[0].T)


def test_the_last_tap_is_the_current_row() -> None:
    u, weight = normal(5, 3, seed=3), torch.zeros(4, 3)
    weight[3] = 1
    close(causal_conv(u, normal(3, 3, seed=4), weight)[0], silu(u))
    first = torch.zeros(4, 3)
    first[0] = 1
    window = normal(3, 3, seed=4)
    close(causal_conv(u, window, first)[0], silu(torch.cat([window, u])[:5]))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_pieces_carry_the_window(pieces: list[int]) -> None:
    u, weight, window = normal(sum(pieces), 6, seed=5), normal(4, 6, seed=6), normal(3, 6, seed=7)
    whole, last = causal_conv(u, window, weight)
    rows, start = [], 0
    for size in pieces:
        y, window = causal_conv(u[start : start + size], window, weight)
        rows.append(y)
        start += size
    close(torch.cat(rows), whole)
    assert torch.equal(window, last)
    assert window.shape == (3, 6)
