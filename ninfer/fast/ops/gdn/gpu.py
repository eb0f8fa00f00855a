"""Gated DeltaNet of a round on GPUs: a program is one block, one value head and a slice of its d_v.

What a column's inputs alone decide (convolution, norms, gates) is worked out for all columns at once and laid
down; then the columns go through the state one after the other, which stays in registers; then what they read
is normed and gated, by the slice that comes last. Programs that share a key head lay down the same bits.

A lane's last four inputs lie in a ring by position: a plain round reads three of them and writes the fourth.
``fold`` commits columns that were only verified, in all layers at once, by what they added to the state.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from ninfer.fast.ops.gpu_control import BLOCK_WORDS

# About as many programs run at once where each has all of a multiprocessor's registers.
PROGRAMS = 128
# Columns that are worked out at once. How a tile lies in a program decides how its sums over d_k and d_v are
# cut: of another height a column would have other last bits (measured at 16).
_AT_ONCE = 8
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


@dataclass(frozen=True, slots=True, eq=False)
class DeltaRows:
    """What columns lay down, a row each, float32 and contiguous.

    ``queries``, ``keys`` [rows, key heads · d_k] after norm; ``decays``, ``rates``, ``meetings`` [rows, value
    heads], the last q · k;
    ``deltas`` [rows, value heads · d_v]: values, then what the state took in of them; ``outputs`` likewise.
    ``arrived`` [blocks, value heads] int32 counts slices and is 0 between launches.
    """

    queries: Tensor
    keys: Tensor
    decays: Tensor
    rates: Tensor
    meetings: Tensor
    deltas: Tensor
    outputs: Tensor
    arrived: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """What ``fold`` reads, over all layers: ``inputs`` [layers, rows, columns] (projections), ``keys``,
    ``decays`` and ``deltas`` [layers, rows, ..] as in ``DeltaRows``.
    """

    inputs: Tensor
    keys: Tensor
    decays: Tensor
    deltas: Tensor


@dataclass(frozen=True, slots=True)
class DeltaCut:
    """How a head is cut: slices of d_v (of 32 at least, and four rows a warp), warps of a slice."""

    slices: int = 2
    warps: int = 8

    def of(self, key_dim: int, value_dim: int) -> DeltaCut:
        """The same for smaller heads."""
        slices = max(1, min(self.slices, value_dim // 32))
        return DeltaCut(slices, max(1, min(self.warps, value_dim // slices // 4, key_dim * value_dim // 512)))


@triton.jit
def softplus(x):
    """log(1 + e^x)."""
    return tl.where(x > 20, x, tl.log(1 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def _convolved(source, row_stride, window, position, weights, channels, column, columns, i):
    """Convolved and activated inputs [columns, channels]: those before the block come from the ring."""
    y = tl.zeros((column.shape[0], i.shape[0]), tl.float32)
    for tap in tl.static_range(4):
        place = column + tap - 3
        row = source + place.to(tl.int64)[:, None] * row_stride
        ring = window + ((position + place + 4) % 4)[:, None] * channels
        x = tl.load(
            tl.where((place < 0)[:, None], ring, row) + i[None, :], mask=(place < columns)[:, None], other=0
        )
        y += x * tl.load(weights + tap * channels + i)[None, :]
    return y / (1 + tl.exp(-y))


@triton.jit
def _summed(gates, part_stride, gate_stride, row, here, PARTS: tl.constexpr):
    total = tl.zeros((row.shape[0],), tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(gates + part * part_stride + row * gate_stride, mask=here, other=0).to(tl.float32)
    return total


@triton.jit
def _delta(
    projected, row_stride, z_at, gates, part_stride, gate_stride, a_at, b_at, convolution, a_log, dt_bias,
    norm, images, image_stride, window_at, state_at, blocks,
    queries, keys, decays, rates, meetings, deltas, outputs, arrived, y, y_stride, eps, root,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    PARTS: tl.constexpr, SLICES: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    record, head, piece = blocks + tl.program_id(0) * _BLOCK, tl.program_id(1), tl.program_id(2)
    first_row, columns, slot = tl.load(record).to(tl.int64), tl.load(record + 1), tl.load(record + 2)
    commit, position = tl.load(record + 3), tl.load(record + 4)
    GROUP: tl.constexpr = VALUE_HEADS // KEY_HEADS
    BV: tl.constexpr = DV // SLICES
    LOW: tl.constexpr = DK if DK < 32 else 32
    HIGH: tl.constexpr = DK // LOW
    channels: tl.constexpr = 2 * KEY_HEADS * DK + VALUE_HEADS * DV
    image = images + slot.to(tl.int64) * image_stride
    window = image + window_at
    dk, dv = tl.arange(0, DK), piece * BV + tl.arange(0, BV)
    iq = (head // GROUP) * DK + dk
    ik = KEY_HEADS * DK + iq
    iv = 2 * KEY_HEADS * DK + head * DV + dv
    # [d_v, d_k / 32, 32]: a sum over d_k is one over registers and one over eight lanes.
    high, low = tl.arange(0, HIGH), tl.arange(0, LOW)
    at = image + state_at + head * DK * DV
    at = at + dv[:, None, None] * DK + high[None, :, None] * LOW + low[None, None, :]
    state = tl.load(at)
    source = projected + first_row * row_stride
    queries += first_row * KEY_HEADS * DK + (head // GROUP) * DK
    keys += first_row * KEY_HEADS * DK + (head // GROUP) * DK
    decays += first_row * VALUE_HEADS + head
    rates += first_row * VALUE_HEADS + head
    meetings += first_row * VALUE_HEADS + head
    deltas += first_row * VALUE_HEADS * DV + head * DV
    outputs += first_row * VALUE_HEADS * DV + head * DV
    gates += first_row * gate_stride + head
    fall = -tl.exp(tl.load(a_log + head))
    bias = tl.load(dt_bias + head)
    for start in range(0, columns, T):
        # Everything is asked for before anything is laid down.
        t = start + tl.arange(0, T)
        here = t < columns
        q = _convolved(source, row_stride, window, position, convolution, channels, t, columns, iq)
        k = _convolved(source, row_stride, window, position, convolution, channels, t, columns, ik)
        v = _convolved(source, row_stride, window, position, convolution, channels, t, columns, iv)
        a = _summed(gates + a_at, part_stride, gate_stride, t, here, PARTS)
        b = _summed(gates + b_at, part_stride, gate_stride, t, here, PARTS)
        q = q * (tl.rsqrt(tl.sum(q * q, 1) + 1e-6) * root)[:, None]
        k = k * tl.rsqrt(tl.sum(k * k, 1) + 1e-6)[:, None]
        tl.store(queries + t[:, None] * (KEY_HEADS * DK) + dk[None, :], q, mask=here[:, None])
        tl.store(keys + t[:, None] * (KEY_HEADS * DK) + dk[None, :], k, mask=here[:, None])
        tl.store(deltas + t[:, None] * (VALUE_HEADS * DV) + dv[None, :], v, mask=here[:, None])
        tl.store(decays + t * VALUE_HEADS, tl.exp(fall * softplus(a + bias)), mask=here)
        tl.store(rates + t * VALUE_HEADS, 1 / (1 + tl.exp(-b)), mask=here)
        tl.store(meetings + t * VALUE_HEADS, tl.sum(q * k, 1), mask=here)
    tl.debug_barrier()
    i = high[:, None] * LOW + low[None, :]
    pair = tl.arange(0, 2)[None, :]
    k, q, v = tl.load(keys + i), tl.load(queries + i), tl.load(deltas + dv)
    decay, rate, meeting = tl.load(decays), tl.load(rates), tl.load(meetings)
    for column in range(columns):
        # The next column is on its way while this one is worked on.
        ahead = tl.minimum(column + 1, columns - 1)
        next_k = tl.load(keys + ahead * (KEY_HEADS * DK) + i)
        next_q = tl.load(queries + ahead * (KEY_HEADS * DK) + i)
        next_v = tl.load(deltas + ahead * (VALUE_HEADS * DV) + dv)
        next_decay, next_rate = tl.load(decays + ahead * VALUE_HEADS), tl.load(rates + ahead * VALUE_HEADS)
        next_meeting = tl.load(meetings + ahead * VALUE_HEADS)
        state = state * decay
        # Both sums read the state before it takes this column in: the output gets its share by q · k.
        found = tl.sum(tl.sum(state * k[None, :, :], 1), 1)
        o = tl.sum(tl.sum(state * q[None, :, :], 1), 1)
        delta = (v - found) * rate
        # One rounding, here and in ``fold``: what is folded is what was verified, bit by bit.
        d = tl.broadcast_to(tl.expand_dims(tl.expand_dims(delta, 1), 1), state.shape)
        state = tl.fma(d, tl.broadcast_to(k[None, :, :], state.shape), state)
        place = column * (VALUE_HEADS * DV) + dv
        both = tl.where(pair == 0, (deltas + place)[:, None], (outputs + place)[:, None])
        tl.store(both, tl.join(delta, o + delta * meeting))
        k, q, v, decay, rate, meeting = next_k, next_q, next_v, next_decay, next_rate, next_meeting
    if commit != 0:
        tl.store(at, state)
        # A block of one column: nobody reads this place of the ring in this round.
        ring = window + (position % 4) * channels
        tl.store(ring + iv, tl.load(source + iv).to(tl.float32))
        if (head % GROUP == 0) & (piece == 0):
            tl.store(ring + iq, tl.load(source + iq).to(tl.float32))
            tl.store(ring + ik, tl.load(source + ik).to(tl.float32))
    tl.debug_barrier()
    last = SLICES == 1
    if SLICES > 1:
        count = arrived + tl.program_id(0) * VALUE_HEADS + head
        last = tl.atomic_add(count, 1, sem="acq_rel") == SLICES - 1
        if last:
            tl.store(count, 0)
    if last:
        whole = tl.arange(0, DV)
        for start in range(0, columns, T):
            t = start + tl.arange(0, T)
            here = (t < columns)[:, None]
            o = tl.load(outputs + t[:, None] * (VALUE_HEADS * DV) + whole[None, :], mask=here, other=0)
            z_row = source + t.to(tl.int64)[:, None] * row_stride + z_at + head * DV
            z = tl.load(z_row + whole[None, :], mask=here, other=0).to(tl.float32)
            o = o * tl.rsqrt(tl.sum(o * o, 1) / DV + eps)[:, None] * tl.load(norm + whole)[None, :]
            o = o * (z / (1 + tl.exp(-z)))
            row = y + (first_row + t)[:, None] * y_stride + head * DV
            tl.store(row + whole[None, :], o.to(y.dtype.element_ty), mask=here)


def delta(layer: DeltaNet, rows: DeltaRows, blocks: Tensor, y: Tensor, count: int, cut: DeltaCut) -> None:
    """``count`` blocks: mixed rows [rows.., value heads · d_v] to ``y``.

    A block of one column may commit: its state and its ring move on.
    """
    cut = cut.of(layer.key_dim, layer.value_dim)
    # Where programs must take turns, two of them share a multiprocessor's registers.
    registers = 128 if count * layer.value_heads * cut.slices > PROGRAMS else None
    _delta[(count, layer.value_heads, cut.slices)](
        layer.projected, layer.projected.stride(0), layer.z_at,
        layer.gates, layer.gates.stride(0), layer.gates.stride(1), layer.a_at, layer.b_at,
        layer.convolution, layer.a_log, layer.dt_bias, layer.norm,
        layer.images, layer.images.stride(0), layer.window_at, layer.state_at, blocks,
        rows.queries, rows.keys, rows.decays, rows.rates, rows.meetings, rows.deltas, rows.outputs,
        rows.arrived,
        y, y.stride(0), layer.eps, layer.key_dim**-0.5,
        KEY_HEADS=layer.key_heads, VALUE_HEADS=layer.value_heads, DK=layer.key_dim, DV=layer.value_dim,
        PARTS=layer.gates.shape[0], SLICES=cut.slices, T=_AT_ONCE, num_warps=cut.warps,
        maxnreg=registers,
    )  # fmt: skip


@triton.jit
def _fold(
    keys, key_stride, decays, decay_stride, deltas, delta_stride, images, image_stride, state_at,
    layer_stride, blocks, KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    record, layer = blocks + tl.program_id(2) * _BLOCK, tl.program_id(1)
    head, piece = tl.program_id(0) // (DV // BV), tl.program_id(0) % (DV // BV)
    row, columns, slot = tl.load(record).to(tl.int64), tl.load(record + 1), tl.load(record + 2)
    dk, dv = tl.arange(0, DK), head * DV + piece * BV + tl.arange(0, BV)
    at = images + slot.to(tl.int64) * image_stride + state_at + layer * layer_stride
    at = at + dv[:, None] * DK + dk[None, :]
    state = tl.load(at)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    keys += layer * key_stride + row * (KEY_HEADS * DK) + key_head * DK
    decays += layer * decay_stride + row * VALUE_HEADS + head
    deltas += layer * delta_stride + row * (VALUE_HEADS * DV)
    k, d, decay = tl.load(keys + dk), tl.load(deltas + dv), tl.load(decays)
    for column in range(columns):
        ahead = tl.minimum(column + 1, columns - 1)
        next_k, next_d = (
            tl.load(keys + ahead * (KEY_HEADS * DK) + dk),
            tl.load(deltas + ahead * (VALUE_HEADS * DV) + dv),
        )
        next_decay = tl.load(decays + ahead * VALUE_HEADS)
        wide_k, wide_d = tl.broadcast_to(k[None, :], state.shape), tl.broadcast_to(d[:, None], state.shape)
        state = tl.fma(wide_d, wide_k, state * decay)
        k, d, decay = next_k, next_d, next_decay
    tl.store(at, state)


@triton.jit
def _shift(
    projected, row_stride, projected_stride, images, image_stride, window_at, layer_stride, blocks, channels,
    BLOCK: tl.constexpr,
):  # fmt: skip
    record, layer = blocks + tl.program_id(2) * _BLOCK, tl.program_id(1).to(tl.int64)
    first_row, columns, slot = tl.load(record).to(tl.int64), tl.load(record + 1), tl.load(record + 2)
    position = tl.load(record + 4)
    window = images + slot.to(tl.int64) * image_stride + window_at + layer * layer_stride
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    projected += layer * projected_stride
    for back in tl.static_range(1, 5):
        column = columns - back
        if column >= 0:
            x = tl.load(projected + (first_row + column) * row_stride + i, mask=i < channels)
            tl.store(window + ((position + column) % 4) * channels + i, x.to(tl.float32), mask=i < channels)


def fold(first: DeltaNet, records: Records, blocks: Tensor, count: int) -> None:
    """Commit the first COLUMNS columns of ``count`` verified blocks in every layer; ``first`` is layer 0.

    Images hold the layers one behind the other, each a ring and a state.
    """
    layers = records.keys.shape[0]
    state = first.value_heads * first.key_dim * first.value_dim
    layer_stride = TAPS * first.channels + state
    block = min(64, first.value_dim)
    _fold[(state // (block * first.key_dim), layers, count)](
        records.keys, records.keys.stride(0), records.decays, records.decays.stride(0),
        records.deltas, records.deltas.stride(0), first.images, first.images.stride(0), first.state_at,
        layer_stride, blocks, KEY_HEADS=first.key_heads, VALUE_HEADS=first.value_heads, DK=first.key_dim,
        DV=first.value_dim, BV=block, num_warps=8,
    )  # fmt: skip
    _shift[(triton.cdiv(first.channels, 1024), layers, count)](
        records.inputs, records.inputs.stride(1), records.inputs.stride(0), first.images,
        first.images.stride(0), first.window_at, layer_stride, blocks, first.channels, BLOCK=1024,
    )  # fmt: skip


def shift(layer: DeltaNet, blocks: Tensor, count: int) -> None:
    """The last four of the blocks' columns into their lanes' rings: as single steps leave them."""
    _shift[(triton.cdiv(layer.channels, 1024), 1, count)](
        layer.projected, layer.projected.stride(0), 0, layer.images, layer.images.stride(0), layer.window_at,
        0, blocks, layer.channels, BLOCK=1024,
    )  # fmt: skip
