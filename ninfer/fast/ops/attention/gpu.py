"""Attention of a round on GPUs: append, attend in splits, merge.

A program of ``attend`` takes 16 or 32 query rows that share a KV head (the columns of one block, several
heads each) through one split; both sizes run the same instructions for a row. How a row's keys are split
depends on its own position alone, and keys outside a row's own split are exact no-ops for it, so a row's
result does not depend on the rows beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ninfer.fast.ops.attention import encodings as e
from ninfer.fast.ops.gpu_control import BLOCK_WORDS, ROW_WORDS
from ninfer.fast.ops.rounding import to_bf16

PAGE = 64
# A row's keys lie in at most SPLITS splits of a power of two tokens, LEAST at least.
SPLITS, LEAST = 64, 64
# Rows of one query tile: of blocks of few columns, and of many (one reading of the keys serves more of them).
TILE, WIDE_TILE = 16, 32
_PAGE, _LEAST = tl.constexpr(PAGE), tl.constexpr(LEAST)
_INT8, _FP8, _NVFP4 = tl.constexpr(e.INT8), tl.constexpr(e.FP8), tl.constexpr(e.NVFP4)
_ROW, _BLOCK = tl.constexpr(ROW_WORDS), tl.constexpr(BLOCK_WORDS)


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Pages of one layer: words [pages, KV heads, 64, words of a row], scales likewise (or empty)."""

    keys: Tensor
    key_scales: Tensor
    values: Tensor
    value_scales: Tensor
    key: e.Encoding
    value: e.Encoding


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """One layer's projections [rows.., columns]: where query, gate, key and value begin; its norms."""

    projected: Tensor
    query_at: int
    gate_at: int
    key_at: int
    value_at: int
    query_norm: Tensor
    key_norm: Tensor
    frequencies: Tensor
    axes: Tensor
    query_heads: int
    kv_heads: int
    head_dim: int
    eps: float


@triton.jit
def _append(
    projected, row_stride, rows, tables, table_stride, query_norm, key_norm, frequencies, axes, query,
    keys, key_scales, values, value_scales, query_at, key_at, value_at, eps, root,
    QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAIRS: tl.constexpr,
    KEY: tl.constexpr, VALUE: tl.constexpr, ROTATE_KEY: tl.constexpr, ROTATE_VALUE: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, D)
    source = projected + row.to(tl.int64) * row_stride
    record = rows + row * _ROW
    position = tl.load(record + 1)
    page = tl.load(tables + tl.load(record + 5) * table_stride + position // _PAGE).to(tl.int64)
    if head >= QUERY_HEADS + KV_HEADS:
        which = head - QUERY_HEADS - KV_HEADS
        x = to_bf16(tl.load(source + value_at + which * D + i).to(tl.float32))
        if ROTATE_VALUE:
            x = e.rotate(x, D)
        e.store(x, values, value_scales, (page * KV_HEADS + which) * _PAGE + position % _PAGE, VALUE, D)
    else:
        is_key = head >= QUERY_HEADS
        at = source + (key_at + (head - QUERY_HEADS) * D if is_key else query_at + head * D)
        x = tl.load(at + i).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x) / D + eps)
        partner = tl.where(i < PAIRS, i + PAIRS, tl.where(i < 2 * PAIRS, i - PAIRS, i))
        if is_key:
            x *= scale * tl.load(key_norm + i)
            y = tl.load(at + partner).to(tl.float32) * scale * tl.load(key_norm + partner)
        else:
            x *= scale * tl.load(query_norm + i)
            y = tl.load(at + partner).to(tl.float32) * scale * tl.load(query_norm + partner)
        pair = tl.where(i < PAIRS, i, tl.where(i < 2 * PAIRS, i - PAIRS, 0))
        axis = tl.load(record + 2 + tl.load(axes + pair))
        angle = axis.to(tl.float32) * tl.load(frequencies + pair)
        turned = x * tl.cos(angle) + tl.where(i < PAIRS, -y, y) * tl.sin(angle)
        x = tl.where(i < 2 * PAIRS, turned, x)
        if is_key:
            x = to_bf16(x)
        else:
            x = x * root
        if ROTATE_KEY:
            x = e.rotate(x, D)
        if is_key:
            which = head - QUERY_HEADS
            e.store(x, keys, key_scales, (page * KV_HEADS + which) * _PAGE + position % _PAGE, KEY, D)
        else:
            tl.store(query + (row.to(tl.int64) * QUERY_HEADS + head) * D + i, x.to(query.dtype.element_ty))


def append(heads: Heads, pool: Pool, rows: Tensor, tables: Tensor, query: Tensor, count: int) -> None:
    """Norm and rotate; keys and values to the rows' page slots, scaled queries to ``query``.

    Shapes: ``rows`` control records [count.., ROW_WORDS] int32, ``tables`` [lanes, pages] int32, ``query``
    [count.., query heads, D].
    """
    _append[(count, heads.query_heads + 2 * heads.kv_heads)](
        heads.projected, heads.projected.stride(0), rows, tables, tables.stride(0),
        heads.query_norm, heads.key_norm, heads.frequencies, heads.axes, query,
        pool.keys, pool.key_scales, pool.values, pool.value_scales,
        heads.query_at, heads.key_at, heads.value_at, heads.eps, heads.head_dim**-0.5,
        QUERY_HEADS=heads.query_heads, KV_HEADS=heads.kv_heads, D=heads.head_dim,
        PAIRS=heads.frequencies.numel(), KEY=pool.key.number, VALUE=pool.value.number,
        ROTATE_KEY=pool.key.rotated, ROTATE_VALUE=pool.value.rotated,
        num_warps=2,
    )  # fmt: skip


@triton.jit
def split_tokens(positions, SPLITS: tl.constexpr):
    """The split of rows at ``positions``: a power of two that cuts ``position + 1`` keys into ≤ SPLITS."""
    size = tl.zeros_like(positions) + _LEAST
    for _ in tl.static_range(13):
        size = tl.where(size * SPLITS < positions + 1, size * 2, size)
    return size


@triton.jit
def _attend(
    query, blocks, tables, table_stride, keys, key_scales, values, value_scales, sums, states,
    QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, TILES: tl.constexpr,
    TILE: tl.constexpr, BT: tl.constexpr, SPLITS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
    QK: tl.constexpr, PV: tl.constexpr,
):  # fmt: skip
    block, piece = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    kv_head, split = tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = QUERY_HEADS // KV_HEADS
    COLUMNS: tl.constexpr = TILE // GROUP
    record = blocks + block * _BLOCK
    first_row, columns, first = tl.load(record), tl.load(record + 1), tl.load(record + 4)
    table = tables + tl.load(record + 5) * table_stride
    m = tl.arange(0, TILE)
    column = piece * COLUMNS + m // GROUP
    valid = (m // GROUP < COLUMNS) & (column < columns)
    position = tl.where(valid, first + column, 0)
    size = split_tokens(position, SPLITS)
    from_, until = split * size, tl.minimum((split + 1) * size, position + 1)
    valid = valid & (from_ < until)
    begin = tl.min(tl.where(valid, from_, 2147483647), 0)
    end = tl.max(tl.where(valid, until, 0), 0)
    if begin < end:
        row = (first_row + column).to(tl.int64) * QUERY_HEADS + kv_head * GROUP + m % GROUP
        d = tl.arange(0, D)
        half = tl.arange(0, D // 2)
        largest = tl.full((TILE,), -float("inf"), tl.float32)
        total = tl.zeros((TILE,), tl.float32)
        if KEY == _NVFP4:
            even = tl.load(query + row[:, None] * D + 2 * half[None, :], mask=valid[:, None], other=0).to(QK)
            odd = tl.load(query + row[:, None] * D + 2 * half[None, :] + 1, mask=valid[:, None], other=0).to(
                QK
            )
        else:
            q = tl.load(query + row[:, None] * D + d[None, :], mask=valid[:, None], other=0).to(QK)
        if VALUE == _NVFP4:
            acc = tl.zeros((TILE, D // 2), tl.float32)
            acc_odd = tl.zeros((TILE, D // 2), tl.float32)
        else:
            acc = tl.zeros((TILE, D), tl.float32)
        page = tl.load(table + begin // _PAGE).to(tl.int64)
        for start in range(begin, end, BT):
            t = start + tl.arange(0, BT)
            seen = t < end
            # The next page is looked up one step ahead: its keys then wait for nothing.
            next_page = tl.load(table + tl.minimum(start + BT, end - 1) // _PAGE).to(tl.int64)
            slot = (page * KV_HEADS + kv_head) * _PAGE + t % _PAGE
            if KEY == _NVFP4:
                w = tl.load(keys + slot[None, :] * (D // 2) + half[:, None])
                s = tl.load(key_scales + slot[None, :] * (D // 16) + half[:, None] // 8)
                scores = tl.dot(even, e.nvfp4(w, s, False, QK), input_precision="ieee")
                scores = tl.dot(odd, e.nvfp4(w, s, True, QK), scores, input_precision="ieee")
            elif KEY == _FP8:
                w = tl.load(keys + slot[None, :] * D + d[:, None])
                scores = tl.dot(q, e.fp8(w, QK), input_precision="ieee")
                scores *= tl.load(key_scales + slot).to(tl.float32)[None, :]
            elif KEY == _INT8:
                w = tl.load(keys + slot[None, :] * D + d[:, None])
                s = tl.load(key_scales + slot[None, :] * (D // 64) + d[:, None] // 64)
                k = (w.to(tl.float32) * s.to(tl.float32)).to(QK)
                scores = tl.dot(q, k, input_precision="ieee")
            else:
                w = tl.load(keys + slot[None, :] * D + d[:, None])
                scores = tl.dot(q, e.direct(w, KEY, QK), input_precision="ieee")
            mine = (t[None, :] >= from_[:, None]) & (t[None, :] < until[:, None])
            scores = tl.where(mine, scores, -float("inf"))
            ceiling = tl.maximum(largest, tl.max(scores, 1))
            safe = tl.where(ceiling == -float("inf"), 0.0, ceiling)
            kept = tl.exp(largest - safe)
            p = tl.exp(scores - safe[:, None])
            total = total * kept + tl.sum(p, 1)
            acc = acc * kept[:, None]
            if VALUE == _NVFP4:
                acc_odd = acc_odd * kept[:, None]
                w = tl.load(values + slot[:, None] * (D // 2) + half[None, :], mask=seen[:, None], other=0)
                s = tl.load(
                    value_scales + slot[:, None] * (D // 16) + half[None, :] // 8, mask=seen[:, None], other=0
                )
                acc = tl.dot(p.to(PV), e.nvfp4(w, s, False, PV), acc, input_precision="ieee")
                acc_odd = tl.dot(p.to(PV), e.nvfp4(w, s, True, PV), acc_odd, input_precision="ieee")
            else:
                w = tl.load(values + slot[:, None] * D + d[None, :], mask=seen[:, None], other=0)
                if VALUE == _FP8:
                    p *= tl.load(value_scales + slot, mask=seen, other=0).to(tl.float32)[None, :]
                    v = e.fp8(w, PV)
                elif VALUE == _INT8:
                    s = tl.load(
                        value_scales + slot[:, None] * (D // 64) + d[None, :] // 64,
                        mask=seen[:, None],
                        other=0,
                    )
                    v = (w.to(tl.float32) * s.to(tl.float32)).to(PV)
                else:
                    v = e.direct(w, VALUE, PV)
                acc = tl.dot(p.to(PV), v, acc, input_precision="ieee")
            largest = ceiling
            page = next_page
        place = row * SPLITS + split
        tl.store(states + place * 2, largest, mask=valid)
        tl.store(states + place * 2 + 1, total, mask=valid)
        if VALUE == _NVFP4:
            tl.store(sums + place[:, None] * D + 2 * half[None, :], acc, mask=valid[:, None])
            tl.store(sums + place[:, None] * D + 2 * half[None, :] + 1, acc_odd, mask=valid[:, None])
        else:
            tl.store(sums + place[:, None] * D + d[None, :], acc, mask=valid[:, None])


def product_types(activations: torch.dtype, key: int) -> tuple[tl.dtype, tl.dtype]:
    """Types of q · k and p · v: fp16 holds codes and probabilities exactly enough; bf16 keys stay bf16."""
    if activations == torch.float32:
        return tl.float32, tl.float32
    return (tl.bfloat16 if key == e.BF16 and activations == torch.bfloat16 else tl.float16), tl.float16


def attend(
    query: Tensor, pool: Pool, blocks: Tensor, tables: Tensor, sums: Tensor, states: Tensor,
    count: int, widest: int, activations: torch.dtype, tile: tuple[int, int, int, int] = (64, 4, 3, 2),
    splits: int = SPLITS,
) -> None:  # fmt: skip
    """Unnormalised sums of every split of ``count`` blocks of at most ``widest`` columns.

    Shapes: ``query`` [rows, query heads, D]; ``sums`` [rows, query heads, SPLITS, D], ``states`` [rows, query
    heads, SPLITS, 2] (maximum, sum), float32; splits behind a row's last are not written. ``tile``: keys a
    step, warps, stages of the narrow tile and of the wide one.
    """
    query_heads, head_dim = query.shape[-2:]
    kv_heads = pool.keys.shape[1]
    group = query_heads // kv_heads
    rows = TILE if widest * group <= TILE else WIDE_TILE
    tiles = triton.cdiv(widest, rows // group)
    qk, pv = product_types(activations, pool.key.number)
    # A split is a page at least.
    _attend[(count * tiles, kv_heads, min(splits, tables.shape[1]))](
        query, blocks, tables, tables.stride(0), pool.keys, pool.key_scales, pool.values, pool.value_scales,
        sums, states, QUERY_HEADS=query_heads, KV_HEADS=kv_heads, D=head_dim, TILES=tiles,
        TILE=rows, BT=tile[0], SPLITS=splits,
        KEY=pool.key.number, VALUE=pool.value.number, QK=qk, PV=pv,
        num_warps=tile[1], num_stages=tile[2] if rows == TILE else tile[3],
    )  # fmt: skip


@triton.jit
def _merge(
    sums, states, rows, projected, row_stride, gate_at, y, y_stride,
    QUERY_HEADS: tl.constexpr, D: tl.constexpr, ROTATED: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    position = tl.load(rows + row * _ROW + 1)
    count = position // split_tokens(position, SPLITS) + 1
    base = (row.to(tl.int64) * QUERY_HEADS + head) * SPLITS
    d, s = tl.arange(0, D), tl.arange(0, SPLITS)
    here = s < count
    maximum = tl.load(states + (base + s) * 2, mask=here, other=-float("inf"))
    # All splits at once: few programs run here, and each should wait for memory once.
    part = tl.load(sums + (base + s)[:, None] * D + d[None, :], mask=here[:, None], other=0)
    factor = tl.exp(maximum - tl.max(maximum, 0))
    total = tl.sum(factor * tl.load(states + (base + s) * 2 + 1, mask=here, other=0), 0)
    acc = tl.sum(part * factor[:, None], 0)
    acc = acc / total
    if ROTATED:
        acc = e.rotate(acc, D)
    gate = tl.load(projected + row.to(tl.int64) * row_stride + gate_at + head * D + d).to(tl.float32)
    acc = acc / (1 + tl.exp(-gate))
    tl.store(y + row.to(tl.int64) * y_stride + head * D + d, acc.to(y.dtype.element_ty))


def merge(
    sums: Tensor, states: Tensor, rows: Tensor, heads: Heads, rotated: bool, y: Tensor, count: int,
    splits: int = SPLITS,
) -> None:  # fmt: skip
    """Splits together, divided, rotated back if values are rotated, times σ(gate): ``y`` [.., heads · D]."""
    _merge[(count, heads.query_heads)](
        sums, states, rows, heads.projected, heads.projected.stride(0), heads.gate_at, y, y.stride(0),
        QUERY_HEADS=heads.query_heads, D=heads.head_dim, ROTATED=rotated, SPLITS=splits,
        num_warps=8,
    )  # fmt: skip
