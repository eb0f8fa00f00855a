"""The gated delta rule over a prefill chunk on GPUs, 64 tokens at a time in matrix products.

``prepare`` convolves and normalises every row; ``solve`` works inside each 64 tokens, all at once; ``scan``
carries the state through them; ``finish`` norms and gates. The 64s lie at absolute multiples, so that a state
does not depend on how its prefill was cut there. Source: Yang et al., Gated Delta Networks (2024), section
3.3 (WY form); formulas in ``ninfer.reference.ops.gdn_chunked``.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from ninfer.fast.ops.gdn.gpu import DeltaNet, softplus

CHUNK = 64
_CHUNK = tl.constexpr(CHUNK)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkBuffers:
    """Scratch of one chunk of T tokens in C pieces, activations unless said otherwise.

    ``query``, ``key`` [T, key heads, d_k]; ``value`` [T, value heads, d_v]; ``written`` [T, value heads,
    d_v], ``read`` [T, value heads, d_k]; ``local`` [T, value heads, 64]; float32 ``sums`` [T, value heads],
    ``system`` [C, value heads, 64, 64] and ``output`` [T, value heads, d_v].
    """

    query: Tensor
    key: Tensor
    value: Tensor
    written: Tensor
    read: Tensor
    local: Tensor
    sums: Tensor
    system: Tensor
    output: Tensor


@triton.jit(do_not_specialize=["slot", "start", "count"])
def _prepare(
    projected, row_stride, convolution, images, image_stride, window_at, slot, start, count, query, key,
    value,
    root, KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    BT: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    channels: tl.constexpr = 2 * KEY_HEADS * DK + VALUE_HEADS * DV
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    d = tl.arange(0, D)
    window = images + slot.to(tl.int64) * image_stride + window_at
    is_value = head >= 2 * KEY_HEADS
    width = DV if is_value else DK
    base = 2 * KEY_HEADS * DK + (head - 2 * KEY_HEADS) * DV if is_value else head * DK
    inside = (d < width)[None, :]
    y = tl.zeros((BT, D), tl.float32)
    for tap in tl.static_range(4):
        row = t + tap - 3
        here = (row >= 0) & (row < count)
        x = tl.load(
            projected + row.to(tl.int64)[:, None] * row_stride + base + d[None, :],
            mask=here[:, None] & inside, other=0,
        ).to(tl.float32)  # fmt: skip
        ring = (row + start + 4) % 4
        x += tl.load(
            window + ring[:, None] * channels + base + d[None, :], mask=(row < 0)[:, None] & inside, other=0
        )
        y += x * tl.load(convolution + tap * channels + base + d, mask=d < width, other=0)[None, :]
    y = y / (1 + tl.exp(-y))
    mask = (t < count)[:, None] & inside
    t = t.to(tl.int64)
    if is_value:
        at = value + (t[:, None] * VALUE_HEADS + head - 2 * KEY_HEADS) * DV + d[None, :]
        tl.store(at, y.to(value.dtype.element_ty), mask=mask)
    else:
        scale = tl.rsqrt(tl.sum(y * y, 1) + 1e-6)
        if head < KEY_HEADS:
            at = query + (t[:, None] * KEY_HEADS + head) * DK + d[None, :]
            tl.store(at, (y * (scale * root)[:, None]).to(query.dtype.element_ty), mask=mask)
        else:
            at = key + (t[:, None] * KEY_HEADS + head - KEY_HEADS) * DK + d[None, :]
            tl.store(at, (y * scale[:, None]).to(key.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["start", "count"])
def _solve(
    gates, gate_stride, a_at, b_at, a_log, dt_bias, query, key, value, written, read, local, sums, system,
    start, count, KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    chunk, head = tl.program_id(0), tl.program_id(1)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    i, dk, dv = tl.arange(0, _CHUNK), tl.arange(0, DK), tl.arange(0, DV)
    t = (start // _CHUNK + chunk) * _CHUNK + i - start
    here = (t >= 0) & (t < count)
    t = t.to(tl.int64)
    keys_at = (t[:, None] * KEY_HEADS + key_head) * DK + dk[None, :]
    k = tl.load(key + keys_at, mask=here[:, None], other=0)
    q = tl.load(query + keys_at, mask=here[:, None], other=0)
    a = tl.load(gates + t * gate_stride + a_at + head, mask=here, other=0).to(tl.float32)
    b = tl.load(gates + t * gate_stride + b_at + head, mask=here, other=0).to(tl.float32)
    step = tl.where(here, -tl.exp(tl.load(a_log + head)) * softplus(a + tl.load(dt_bias + head)), 0.0)
    beta = tl.where(here, 1 / (1 + tl.exp(-b)), 0.0)
    gamma = tl.cumsum(step, 0)
    tl.store(sums + t * VALUE_HEADS + head, gamma, mask=here)
    lower = i[:, None] >= i[None, :]
    # Masked before the exponential: above the diagonal it would overflow.
    decays = tl.exp(tl.where(lower, gamma[:, None] - gamma[None, :], -float("inf")))
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * decays
    tl.store(
        local + (t[:, None] * VALUE_HEADS + head) * _CHUNK + i[None, :],
        scores.to(local.dtype.element_ty), mask=here[:, None],
    )  # fmt: skip
    strict = tl.dot(k, tl.trans(k), input_precision="ieee") * decays * beta[:, None]
    strict = tl.where(i[:, None] > i[None, :], strict, 0.0)
    scratch = system + (chunk.to(tl.int64) * VALUE_HEADS + head) * _CHUNK * _CHUNK
    tl.store(scratch + i[:, None] * _CHUNK + i[None, :], strict)
    tl.debug_barrier()
    inverse = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    for row in range(1, _CHUNK):
        factors = tl.load(scratch + row * _CHUNK + i)
        below = tl.sum(factors[:, None] * inverse, 0)
        inverse = inverse - tl.where((i == row)[:, None], below[None, :], 0.0)
    values_at = (t[:, None] * VALUE_HEADS + head) * DV + dv[None, :]
    v = tl.load(value + values_at, mask=here[:, None], other=0).to(tl.float32) * beta[:, None]
    u = tl.dot(inverse, v, input_precision="tf32")
    tl.store(written + values_at, u.to(written.dtype.element_ty), mask=here[:, None])
    grown = k.to(tl.float32) * (beta * tl.exp(gamma))[:, None]
    w = tl.dot(inverse, grown, input_precision="tf32")
    reads_at = (t[:, None] * VALUE_HEADS + head) * DK + dk[None, :]
    tl.store(read + reads_at, w.to(read.dtype.element_ty), mask=here[:, None])


@triton.jit(do_not_specialize=["slot", "start", "count", "chunks"])
def _scan(
    query, key, written, read, local, sums, output, images, image_stride, state_at, slot, start, count,
    chunks,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    i, dk = tl.arange(0, _CHUNK), tl.arange(0, DK)
    dv = tl.program_id(1) * BV + tl.arange(0, BV)
    at = images + slot.to(tl.int64) * image_stride + state_at + head * DK * DV
    at = at + dv[None, :] * DK + dk[:, None]
    state = tl.load(at)
    for chunk in range(chunks):
        t = (start // _CHUNK + chunk) * _CHUNK + i - start
        here = (t >= 0) & (t < count)
        t = t.to(tl.int64)
        keys_at = (t[:, None] * KEY_HEADS + key_head) * DK + dk[None, :]
        values_at = (t[:, None] * VALUE_HEADS + head) * DV + dv[None, :]
        reads_at = (t[:, None] * VALUE_HEADS + head) * DK + dk[None, :]
        w = tl.load(read + reads_at, mask=here[:, None], other=0).to(tl.float32)
        u = tl.load(written + values_at, mask=here[:, None], other=0).to(tl.float32)
        q = tl.load(query + keys_at, mask=here[:, None], other=0).to(tl.float32)
        k = tl.load(key + keys_at, mask=here[:, None], other=0).to(tl.float32)
        near = tl.load(
            local + (t[:, None] * VALUE_HEADS + head) * _CHUNK + i[None, :], mask=here[:, None], other=0
        ).to(tl.float32)  # fmt: skip
        gamma = tl.load(sums + t * VALUE_HEADS + head, mask=here, other=0)
        # The decay only grows: the last row's sum is the smallest.
        last = tl.min(tl.where(here, gamma, 0.0), 0)
        values = u - tl.dot(w, state, input_precision="tf32")
        o = tl.dot(q, state, input_precision="tf32") * tl.exp(gamma)[:, None]
        o = tl.dot(near, values, o, input_precision="tf32")
        tl.store(output + values_at, o.to(output.dtype.element_ty), mask=here[:, None])
        scaled = k * tl.where(here, tl.exp(last - gamma), 0.0)[:, None]
        state = state * tl.exp(last)
        state = tl.dot(tl.trans(scaled), values, state, input_precision="tf32")
    tl.store(at, state)


@triton.jit(do_not_specialize=["count"])
def _finish(
    output, projected, row_stride, z_at, norm, y, y_stride, count, eps,
    VALUE_HEADS: tl.constexpr, DV: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    t, dv = tl.program_id(0) * BT + tl.arange(0, BT), tl.arange(0, DV)
    mask = (t < count)[:, None]
    t = t.to(tl.int64)
    o = tl.load(output + (t[:, None] * VALUE_HEADS + head) * DV + dv[None, :], mask=mask, other=0).to(
        tl.float32
    )
    z = tl.load(projected + t[:, None] * row_stride + z_at + head * DV + dv[None, :], mask=mask, other=0)
    z = z.to(tl.float32)
    o = (
        o
        * tl.rsqrt(tl.sum(o * o, 1) / DV + eps)[:, None]
        * tl.load(norm + dv)[None, :]
        * (z / (1 + tl.exp(-z)))
    )
    tl.store(y + t[:, None] * y_stride + head * DV + dv[None, :], o.to(y.dtype.element_ty), mask=mask)


def delta_chunk(layer: DeltaNet, buffers: ChunkBuffers, slot: int, start: int, count: int, y: Tensor) -> None:
    """``count`` tokens from place ``start`` of the lane in ``slot``: mixed rows to ``y``, its state moves on.

    ``layer.projected`` [T, columns] and ``layer.gates`` [1, T, columns] hold the chunk's projections; the
    ring is only read (``shift`` follows).
    """
    heads = {"KEY_HEADS": layer.key_heads, "VALUE_HEADS": layer.value_heads}
    sizes = {**heads, "DK": layer.key_dim, "DV": layer.value_dim}
    chunks = (start + count + CHUNK - 1) // CHUNK - start // CHUNK
    projected, images, b = layer.projected, layer.images, buffers
    _prepare[(triton.cdiv(count, 16), 2 * layer.key_heads + layer.value_heads)](
        projected, projected.stride(0), layer.convolution, images, images.stride(0), layer.window_at, slot,
        start, count, b.query, b.key, b.value, layer.key_dim**-0.5, **sizes, BT=16,
        D=triton.next_power_of_2(max(layer.key_dim, layer.value_dim)),
    )  # fmt: skip
    _solve[(chunks, layer.value_heads)](
        layer.gates, layer.gates.stride(1), layer.a_at, layer.b_at, layer.a_log, layer.dt_bias,
        b.query, b.key, b.value, b.written, b.read, b.local, b.sums, b.system, start, count, **sizes,
        num_warps=4, num_stages=1,
    )  # fmt: skip
    block = min(32, layer.value_dim)
    _scan[(layer.value_heads, layer.value_dim // block)](
        b.query, b.key, b.written, b.read, b.local, b.sums, b.output, images, images.stride(0),
        layer.state_at,
        slot, start, count, chunks, **sizes, BV=block, num_warps=4, num_stages=1,
    )  # fmt: skip
    _finish[(triton.cdiv(count, 16), layer.value_heads)](
        b.output, projected, projected.stride(0), layer.z_at, layer.norm, y, y.stride(0), count, layer.eps,
        VALUE_HEADS=layer.value_heads, DV=layer.value_dim, BT=16,
    )  # fmt: skip
