"""Gated DeltaNet of a round on GPUs: one program is one block and value head, its columns in order.

The convolution, the norms, the gates, the transition and the gated norm are one pass over the state. A lane's
last four inputs lie in a ring by position: a plain round reads three of them and writes the fourth, so that
the value heads that share a key head never meet. ``fold`` replays kept columns with the same instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from ninfer.fast.ops.gpu_control import BLOCK_WORDS

TAPS = 4  # columns of the ring, and taps of the convolution
_BLOCK = tl.constexpr(BLOCK_WORDS)


@dataclass(frozen=True, slots=True, eq=False)
class DeltaNet:
    """One layer. ``projected`` [rows.., columns]: inputs [Q | K | V] from column 0, z from ``z_at``;
    ``gates`` [parts, rows.., columns] with a and b; ``images`` [slots, floats] float32.
    """

    projected: Tensor
    z_at: int
    gates: Tensor
    a_at: int
    b_at: int
    convolution: Tensor
    a_log: Tensor
    dt_bias: Tensor
    norm: Tensor
    images: Tensor
    window_at: int
    state_at: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    eps: float

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@triton.jit
def _ring(window, position, back: tl.constexpr, channels, i):
    return tl.load(window + ((position + 4 - back) % 4) * channels + i)


@triton.jit
def _mixed(oldest, older, old, new, weights, channels, i):
    """The convolved and activated inputs."""
    y = oldest * tl.load(weights + i) + older * tl.load(weights + channels + i)
    y += old * tl.load(weights + 2 * channels + i) + new * tl.load(weights + 3 * channels + i)
    return y / (1 + tl.exp(-y))


@triton.jit
def softplus(x):
    """log(1 + e^x)."""
    return tl.where(x > 20, x, tl.log(1 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def _delta(
    projected, row_stride, z_at, gates, part_stride, gate_stride, a_at, b_at, convolution, a_log, dt_bias,
    norm,
    images, image_stride, window_at, state_at, blocks, y, y_stride, eps, root,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    PARTS: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    record, head = blocks + tl.program_id(0) * _BLOCK, tl.program_id(1)
    first_row, columns, slot = tl.load(record), tl.load(record + 1), tl.load(record + 2)
    commit, position = tl.load(record + 3), tl.load(record + 4)
    GROUP: tl.constexpr = VALUE_HEADS // KEY_HEADS
    channels: tl.constexpr = 2 * KEY_HEADS * DK + VALUE_HEADS * DV
    image = images + slot.to(tl.int64) * image_stride
    window = image + window_at
    dk, dv = tl.arange(0, DK), tl.arange(0, DV)
    iq = (head // GROUP) * DK + dk
    ik = KEY_HEADS * DK + iq
    iv = 2 * KEY_HEADS * DK + head * DV + dv
    # Rows of d_k: both sums over it stay inside a warp.
    at = image + state_at + head * DK * DV + dv[:, None] * DK + dk[None, :]
    state = tl.load(at)
    q3, q2, q1 = (
        _ring(window, position, 3, channels, iq),
        _ring(window, position, 2, channels, iq),
        _ring(window, position, 1, channels, iq),
    )
    k3, k2, k1 = (
        _ring(window, position, 3, channels, ik),
        _ring(window, position, 2, channels, ik),
        _ring(window, position, 1, channels, ik),
    )
    v3, v2, v1 = (
        _ring(window, position, 3, channels, iv),
        _ring(window, position, 2, channels, iv),
        _ring(window, position, 1, channels, iv),
    )
    decay = -tl.exp(tl.load(a_log + head))
    bias = tl.load(dt_bias + head)
    for column in range(columns):
        row = (first_row + column).to(tl.int64)
        source = projected + row * row_stride
        q0, k0, v0 = (
            tl.load(source + iq).to(tl.float32),
            tl.load(source + ik).to(tl.float32),
            tl.load(source + iv).to(tl.float32),
        )
        k = _mixed(k3, k2, k1, k0, convolution, channels, ik)
        v = _mixed(v3, v2, v1, v0, convolution, channels, iv)
        k = k * tl.rsqrt(tl.sum(k * k) + 1e-6)
        a, b = 0.0, 0.0
        for part in tl.static_range(PARTS):
            gate = gates + part * part_stride + row * gate_stride
            a += tl.load(gate + a_at + head).to(tl.float32)
            b += tl.load(gate + b_at + head).to(tl.float32)
        state = state * tl.exp(decay * softplus(a + bias))
        delta = (v - tl.sum(state * k[None, :], 1)) / (1 + tl.exp(-b))
        state = state + delta[:, None] * k[None, :]
        if not FOLD:
            q = _mixed(q3, q2, q1, q0, convolution, channels, iq)
            q = q * (tl.rsqrt(tl.sum(q * q) + 1e-6) * root)
            o = tl.sum(state * q[None, :], 1)
            z = tl.load(source + z_at + head * DV + dv).to(tl.float32)
            o = o * tl.rsqrt(tl.sum(o * o) / DV + eps) * tl.load(norm + dv) * (z / (1 + tl.exp(-z)))
            tl.store(y + row * y_stride + head * DV + dv, o.to(y.dtype.element_ty))
        q3, q2, q1 = q2, q1, q0
        k3, k2, k1 = k2, k1, k0
        v3, v2, v1 = v2, v1, v0
    if commit != 0:
        tl.store(at, state)
        if not FOLD:
            # A block of one column: nobody reads this place of the ring in this round.
            ring = window + (position % 4) * channels
            tl.store(ring + iv, v1)
            if head % GROUP == 0:
                tl.store(ring + iq, q1)
                tl.store(ring + ik, k1)


def delta(layer: DeltaNet, blocks: Tensor, y: Tensor, count: int, fold: bool = False) -> None:
    """``count`` blocks: mixed rows [rows.., value heads · d_v] to ``y``; committed states move on.

    A block that commits here has one column. ``fold`` writes the state of COLUMNS kept columns and no rows;
    ``shift`` follows it.
    """
    # A whole state is 16,384 numbers: eight warps hold it in registers.
    warps = max(1, min(8, layer.key_dim * layer.value_dim // 2048))
    _delta[(count, layer.value_heads)](
        layer.projected, layer.projected.stride(0), layer.z_at,
        layer.gates, layer.gates.stride(0), layer.gates.stride(1), layer.a_at, layer.b_at,
        layer.convolution, layer.a_log, layer.dt_bias, layer.norm,
        layer.images, layer.images.stride(0), layer.window_at, layer.state_at, blocks, y, y.stride(0),
        layer.eps, layer.key_dim**-0.5,
        KEY_HEADS=layer.key_heads, VALUE_HEADS=layer.value_heads, DK=layer.key_dim, DV=layer.value_dim,
        PARTS=layer.gates.shape[0], FOLD=fold, num_warps=warps,
    )  # fmt: skip


@triton.jit
def _shift(
    projected, row_stride, images, image_stride, window_at, blocks, channels, BLOCK: tl.constexpr,
):  # fmt: skip
    record = blocks + tl.program_id(0) * _BLOCK
    first_row, columns, slot = tl.load(record), tl.load(record + 1), tl.load(record + 2)
    position = tl.load(record + 4)
    window = images + slot.to(tl.int64) * image_stride + window_at
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    for back in tl.static_range(1, 5):
        column = columns - back
        if column >= 0:
            x = tl.load(projected + (first_row + column).to(tl.int64) * row_stride + i, mask=i < channels)
            tl.store(window + ((position + column) % 4) * channels + i, x.to(tl.float32), mask=i < channels)


def shift(layer: DeltaNet, blocks: Tensor, count: int) -> None:
    """The last four of the blocks' columns into their lanes' rings: as single steps leave them."""
    _shift[(count, triton.cdiv(layer.channels, 1024))](
        layer.projected, layer.projected.stride(0), layer.images, layer.images.stride(0), layer.window_at,
        blocks, layer.channels, BLOCK=1024,
    )  # fmt: skip
