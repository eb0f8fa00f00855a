"""Attention of a prefill chunk on GPUs: query tiles over a lane's pages with a running softmax.

Formats other than 16 bits are first expanded to fp16 pages of the lane alone (``expand``), so that a chunk
sees exactly what decoding will see.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ninfer.fast.ops.attention import encodings as e
from ninfer.fast.ops.attention.gpu import PAGE, Heads, Pool, product_types

_PAGE = tl.constexpr(PAGE)
_INT8, _FP8, _NVFP4 = tl.constexpr(e.INT8), tl.constexpr(e.FP8), tl.constexpr(e.NVFP4)


@triton.jit(do_not_specialize=["start", "count"])
def _attend_chunk(
    query, table, keys, values, projected, row_stride, gate_at, y, y_stride, start, count,
    QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, KEY: tl.constexpr,
    VALUE: tl.constexpr,
    GATED: tl.constexpr, QK: tl.constexpr, PV: tl.constexpr, BM: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    # Late tiles see the most keys: they start first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (QUERY_HEADS // KV_HEADS)
    m, d = tile * BM + tl.arange(0, BM), tl.arange(0, D)
    here = m < count
    rows = m.to(tl.int64)
    q = tl.load(
        query + (rows[:, None] * QUERY_HEADS + head) * D + d[None, :], mask=here[:, None], other=0
    ).to(QK)  # fmt: skip
    place = start + m
    largest = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    end = start + tl.minimum((tile + 1) * BM, count)
    # Blocks that lie before every row of the tile need no mask.
    whole = (start + tile * BM + 1) // BT * BT
    for begin in range(0, whole, BT):
        t = begin + tl.arange(0, BT)
        page = tl.load(table + begin // _PAGE).to(tl.int64)
        slot = (page * KV_HEADS + kv_head) * _PAGE + t % _PAGE
        k = e.direct(tl.load(keys + slot[None, :] * D + d[:, None]), KEY, QK)
        scores = tl.dot(q, k, input_precision="ieee")
        ceiling = tl.maximum(largest, tl.max(scores, 1))
        kept = tl.exp(largest - ceiling)
        p = tl.exp(scores - ceiling[:, None])
        total = total * kept + tl.sum(p, 1)
        v = e.direct(tl.load(values + slot[:, None] * D + d[None, :]), VALUE, PV)
        acc = tl.dot(p.to(PV), v, acc * kept[:, None], input_precision="ieee")
        largest = ceiling
    for begin in range(whole, end, BT):
        t = begin + tl.arange(0, BT)
        page = tl.load(table + begin // _PAGE).to(tl.int64)
        slot = (page * KV_HEADS + kv_head) * _PAGE + t % _PAGE
        k = e.direct(tl.load(keys + slot[None, :] * D + d[:, None]), KEY, QK)
        scores = tl.dot(q, k, input_precision="ieee")
        scores = tl.where(t[None, :] <= place[:, None], scores, -float("inf"))
        ceiling = tl.maximum(largest, tl.max(scores, 1))
        safe = tl.where(ceiling == -float("inf"), 0.0, ceiling)
        kept = tl.exp(largest - safe)
        p = tl.exp(scores - safe[:, None])
        total = total * kept + tl.sum(p, 1)
        w = tl.load(values + slot[:, None] * D + d[None, :], mask=(t < end)[:, None], other=0)
        acc = tl.dot(p.to(PV), e.direct(w, VALUE, PV), acc * kept[:, None], input_precision="ieee")
        largest = ceiling
    acc = acc / total[:, None]
    if GATED:
        gate = tl.load(
            projected + rows[:, None] * row_stride + gate_at + head * D + d[None, :], mask=here[:, None],
            other=0
        ).to(tl.float32)  # fmt: skip
        acc = acc / (1 + tl.exp(-gate))
    tl.store(
        y + rows[:, None] * y_stride + head * D + d[None, :], acc.to(y.dtype.element_ty), mask=here[:, None]
    )


@triton.jit
def _rotate_and_gate(
    x, projected, row_stride, gate_at, y, y_stride, QUERY_HEADS: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d = tl.arange(0, D)
    rows = e.rotate(tl.load(x + (row * QUERY_HEADS + head) * D + d).to(tl.float32), D)
    gate = tl.load(projected + row * row_stride + gate_at + head * D + d).to(tl.float32)
    tl.store(y + row * y_stride + head * D + d, (rows / (1 + tl.exp(-gate))).to(y.dtype.element_ty))


@triton.jit
def _expand(
    table, words, scales, out, KV_HEADS: tl.constexpr, D: tl.constexpr, ENCODING: tl.constexpr
):  # fmt: skip
    place, head = tl.program_id(0), tl.program_id(1)
    page = tl.load(table + place).to(tl.int64)
    t, d = tl.arange(0, _PAGE), tl.arange(0, D)
    slot = (page * KV_HEADS + head) * _PAGE + t
    target = ((place.to(tl.int64) * KV_HEADS + head) * _PAGE + t)[:, None] * D
    if ENCODING == _NVFP4:
        half = tl.arange(0, D // 2)
        w = tl.load(words + slot[:, None] * (D // 2) + half[None, :])
        s = tl.load(scales + slot[:, None] * (D // 16) + half[None, :] // 8)
        low, high = e.nvfp4(w, s, False, tl.float16), e.nvfp4(w, s, True, tl.float16)
        tl.store(out + target + 2 * half[None, :], low.to(tl.int16, bitcast=True))
        tl.store(out + target + 2 * half[None, :] + 1, high.to(tl.int16, bitcast=True))
    else:
        w = tl.load(words + slot[:, None] * D + d[None, :])
        if ENCODING == _FP8:
            x = e.fp8(w, tl.float32) * tl.load(scales + slot).to(tl.float32)[:, None]
        else:
            x = w.to(tl.float32) * tl.load(scales + slot[:, None] * (D // 64) + d[None, :] // 64).to(
                tl.float32
            )
        tl.store(out + target + d[None, :], x.to(tl.float16).to(tl.int16, bitcast=True))


def attend_chunk(
    heads: Heads, query: Tensor, pool: Pool, table: Tensor, start: int, count: int, y: Tensor,
    scratch: tuple[Tensor, Tensor] | None, identity: Tensor, raw: Tensor, tile: tuple[int, int, int, int],
    activations: torch.dtype,
) -> None:  # fmt: skip
    """Gated attention of ``count`` rows from place ``start``: ``query`` [T, heads, D] → ``y`` [T, heads · D].

    ``table`` lists the lane's pages; ``scratch`` (keys, values) holds expanded pages [pages, KV heads, 64, D]
    int16 where the format is not 16 bits wide, ``identity`` their numbers; ``raw`` [T, heads, D] takes the
    rows that must be rotated back; ``tile``: query rows, keys, warps and stages.
    """
    kv_heads, head_dim = heads.kv_heads, heads.head_dim
    pages = triton.cdiv(start + count, PAGE)
    keys, values, key, value = pool.keys, pool.values, pool.key.number, pool.value.number
    if scratch is not None:
        for words, scales, encoding, out in (
            (pool.keys, pool.key_scales, key, scratch[0]), (pool.values, pool.value_scales, value, scratch[1])
        ):  # fmt: skip
            _expand[(pages, kv_heads)](
                table, words, scales, out, KV_HEADS=kv_heads, D=head_dim, ENCODING=encoding
            )
        (keys, values), table, key, value = scratch, identity, e.FP16, e.FP16
    qk, pv = product_types(activations, key)
    rows, columns, warps, stages = tile
    rotated = pool.value.rotated
    out, out_stride = (raw, raw.stride(0)) if rotated else (y, y.stride(0))
    _attend_chunk[(triton.cdiv(count, rows), heads.query_heads)](
        query, table, keys, values, heads.projected, heads.projected.stride(0), heads.gate_at, out,
        out_stride,
        start, count, QUERY_HEADS=heads.query_heads, KV_HEADS=kv_heads, D=head_dim, KEY=key, VALUE=value,
        GATED=not rotated, QK=qk, PV=pv, BM=rows, BT=columns, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if rotated:
        _rotate_and_gate[(count, heads.query_heads)](
            raw, heads.projected, heads.projected.stride(0), heads.gate_at, y, y.stride(0),
            QUERY_HEADS=heads.query_heads, D=head_dim, num_warps=2,
        )  # fmt: skip
