"""Mixture of experts on GPUs: every row reads its own experts in a round; a prefill chunk is sorted by
expert.

All experts of a layer are one tall packed matrix, ``stride`` rows an expert (gate and up interleaved,
padded); an expert's rows are a range of it. Results of the chosen experts stay apart until ``combine`` adds
them in the order of the choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ninfer.fast.ops.linear.gpu import Tile, columns_tile, multiply, steps_of, triton_type
from ninfer.fast.ops.linear.packing import Packed


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """Stacked experts: ``matrix`` [experts · stride, K] of which ``rows`` of each expert count."""

    matrix: Packed
    rows: int
    stride: int


@triton.jit
def _route(
    logits, part_stride, row_stride, choice, strengths,
    EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    mask = i < EXPERTS
    x = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        x += tl.load(logits + part * part_stride + row * row_stride + i, mask=mask, other=0).to(tl.float32)
    x = tl.where(mask, x, -float("inf"))
    largest = tl.max(x, 0)
    kept = 0.0
    left = x
    for rank in tl.static_range(CHOSEN):
        top = tl.max(left, 0)
        best = tl.min(tl.where(left == top, i, BLOCK), 0)
        kept += tl.exp(top - largest)
        # Logits that are no numbers must not lead out of the weights.
        tl.store(choice + row * CHOSEN + rank, tl.minimum(best, EXPERTS - 1))
        left = tl.where(i == best, -float("inf"), left)
    left = x
    for rank in tl.static_range(CHOSEN):
        top = tl.max(left, 0)
        best = tl.min(tl.where(left == top, i, BLOCK), 0)
        tl.store(strengths + row * CHOSEN + rank, tl.exp(top - largest) / kept)
        left = tl.where(i == best, -float("inf"), left)


def route(logits: Tensor, choice: Tensor, strengths: Tensor, experts: int, rows: int) -> None:
    """The k experts of each row with the largest router logit (ties to the lower id), softmax over the
    chosen.

    Shapes: ``logits`` [parts, rows.., ≥ experts] float32; ``choice`` [rows.., k] int32, ``strengths``
    [rows.., k] float32. Equal to the softmax over all experts divided by the chosen ones' sum.
    """
    _route[(rows,)](
        logits, logits.stride(0), logits.stride(1), choice, strengths,
        EXPERTS=experts, CHOSEN=choice.shape[1], PARTS=logits.shape[0],
        BLOCK=triton.next_power_of_2(experts), num_warps=1 if experts <= 256 else 4,
    )  # fmt: skip


@triton.jit
def _chosen(
    x, x_stride, choice, words, high, scales, row_scales, y, y_stride, count, stride, width, steps,
    X_PER_ROW: tl.constexpr, CHOSEN: tl.constexpr, FORMAT: tl.constexpr, ROW_SCALED: tl.constexpr,
    GATED: tl.constexpr, K: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, ACT: tl.constexpr,
):  # fmt: skip
    pair, tile = tl.program_id(0), tl.program_id(1)
    m = tl.arange(0, M)
    expert = tl.load(choice + pair)
    n = expert * stride + tile * BN + tl.arange(0, BN)
    source = pair // CHOSEN if X_PER_ROW else pair
    acc = multiply(
        x + source.to(tl.int64) * x_stride, m * 0, m < 1, words, high, scales, n, width, 0, steps,
        FORMAT, K, M, BN, ACT,
    )  # fmt: skip
    if ROW_SCALED:
        acc *= tl.load(row_scales + n)[None, :]
    y += pair.to(tl.int64) * y_stride
    if GATED:
        gate, up = tl.split(tl.reshape(acc, (M, BN // 2, 2)))
        acc = gate / (1 + tl.exp(-gate)) * up
        column = tile * (BN // 2) + tl.arange(0, BN // 2)
        mask = (m < 1)[:, None] & (column < count // 2)[None, :]
    else:
        column = tile * BN + tl.arange(0, BN)
        mask = (m < 1)[:, None] & (column < count)[None, :]
    tl.store(y + m[:, None] * 0 + column[None, :], acc.to(y.dtype.element_ty), mask=mask)


def _launch(
    x: Tensor, choice: Tensor, experts: Experts, y: Tensor, tile: Tile, pairs: int, gated: bool
) -> None:
    m = experts.matrix
    _chosen[(pairs, triton.cdiv(experts.rows, tile.rows))](
        x, x.stride(0), choice, m.words, m.high, m.scales, m.row_scales, y, y.stride(0),
        experts.rows, experts.stride, m.width, steps_of(m, tile),
        X_PER_ROW=gated, CHOSEN=choice.shape[1], FORMAT=m.format, ROW_SCALED=m.row_scales.numel() > 0,
        GATED=gated, K=tile.k, M=columns_tile(1, m.format), BN=tile.rows, ACT=triton_type(x.dtype),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def expand(x: Tensor, choice: Tensor, experts: Experts, y: Tensor, tile: Tile, rows: int) -> None:
    """SiLU(gate x) ⊙ (up x) of every row and chosen expert: ``y`` [rows · k.., ≥ width] activations."""
    _launch(x, choice, experts, y, tile, rows * choice.shape[1], gated=True)


def contract(x: Tensor, choice: Tensor, experts: Experts, y: Tensor, tile: Tile, rows: int) -> None:
    """``down`` of every product: ``x`` [rows · k.., width] → ``y`` [rows · k.., hidden] float32."""
    _launch(x, choice, experts, y, tile, rows * choice.shape[1], gated=False)


# --- a prefill chunk: pairs sorted by expert, tiles of one expert each --------------------------------------

TILE_ROWS = 128


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    """``order`` [pairs] sorted by expert; per tile its expert, first place and end (last ones are empty)."""

    order: Tensor
    expert: Tensor
    begin: Tensor
    end: Tensor


def group(choice: Tensor, experts: int, tile_rows: int = TILE_ROWS) -> Grouping:
    """Sort the pairs of ``choice`` [T, k] by expert, without waiting for the device."""
    flat = choice.flatten().long()
    order = torch.argsort(flat, stable=True)
    counts = torch.zeros(experts, dtype=torch.int64, device=flat.device).scatter_add_(
        0, flat, torch.ones_like(flat)
    )
    begins = counts.cumsum(0) - counts
    tiles = (counts + tile_rows - 1) // tile_rows
    ends = tiles.cumsum(0)
    most = flat.numel() // tile_rows + min(experts, flat.numel())
    index = torch.arange(most, device=flat.device)
    expert = torch.searchsorted(ends, index, right=True).clamp(max=experts - 1)
    inside = index - (ends - tiles)[expert]
    begin = begins[expert] + inside * tile_rows
    limit = (begins + counts)[expert]
    end = torch.where(index < ends[-1], torch.minimum(begin + tile_rows, limit), begin)
    return Grouping(order.int(), expert.int(), begin.int(), end.int())


@triton.jit
def _grouped(
    x, x_stride, order, tile_expert, tile_begin, tile_end, w, stride, width, y, y_stride, count,
    X_PER_ROW: tl.constexpr, CHOSEN: tl.constexpr, GATED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACT: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(1)
    begin, end = tl.load(tile_begin + tile), tl.load(tile_end + tile)
    if begin < end:
        m = begin + tl.arange(0, BM)
        here = m < end
        pair = tl.load(order + m, mask=here, other=0)
        source = (pair // CHOSEN if X_PER_ROW else m).to(tl.int64)
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        row = (tl.load(tile_expert + tile) * stride + n).to(tl.int64)
        k = tl.arange(0, BK)
        acc = tl.zeros((BM, BN), tl.float32)
        for step in range(0, width, BK):
            a = tl.load(x + source[:, None] * x_stride + (step + k)[None, :], mask=here[:, None], other=0)
            b = tl.load(w + row[None, :] * width + (step + k)[:, None])
            acc = tl.dot(a.to(ACT), b.to(ACT), acc, input_precision="ieee")
        if GATED:
            gate, up = tl.split(tl.reshape(acc, (BM, BN // 2, 2)))
            acc = gate / (1 + tl.exp(-gate)) * up
            column = tl.program_id(0) * (BN // 2) + tl.arange(0, BN // 2)
            at = y + m.to(tl.int64)[:, None] * y_stride + column[None, :]
            mask = here[:, None] & (column < count // 2)[None, :]
        else:
            at = y + pair.to(tl.int64)[:, None] * y_stride + n[None, :]
            mask = here[:, None] & (n < count)[None, :]
        tl.store(at, acc.to(y.dtype.element_ty), mask=mask)


def grouped(
    x: Tensor, grouping: Grouping, experts: Experts, weights: Tensor, chosen: int, y: Tensor, gated: bool
) -> None:
    """One product over sorted pairs: gated from rows ``x`` [T, K] to sorted ``y`` [pairs, width], or down
    from sorted ``x`` to ``y`` [pairs, hidden] in the order of the choice. ``weights`` [experts · stride,
    width].
    """
    block = 128
    grid = (triton.cdiv(experts.rows, block), grouping.expert.numel())
    _grouped[grid](
        x, x.stride(0), grouping.order, grouping.expert, grouping.begin, grouping.end, weights,
        experts.stride,
        weights.shape[1], y, y.stride(0), experts.rows, X_PER_ROW=gated, CHOSEN=chosen, GATED=gated,
        BM=TILE_ROWS, BN=block, BK=64, ACT=triton_type(x.dtype), num_warps=8, num_stages=3,
    )  # fmt: skip
