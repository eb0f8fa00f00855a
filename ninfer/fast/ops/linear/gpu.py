"""``linear`` on GPUs: packed weights streamed once through the tensor cores, for up to 64 columns.

A program computes BN rows of W for M columns (16 up to width 16: narrower calls leave lanes empty), over one
of a fixed number of equal parts of K. Law 8: at widths 1..16 tile, order and parts are the same, and a lane
of a matrix instruction does not see the others, so y[c] is bit-identical at each of them. Partial sums of the
parts lie one behind the other; the consumer adds them in order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from ninfer.fast.ops.linear import decode as d
from ninfer.fast.ops.linear.packing import BF16, FP8, NVFP4, Q4, Q5, Q6, Q8, Packed

_BF16, _FP8, _Q8, _Q6, _Q5, _Q4, _NVFP4 = (
    tl.constexpr(number) for number in (BF16, FP8, Q8, Q6, Q5, Q4, NVFP4)
)
STORE, SWIGLU = 0, 1
_SWIGLU = tl.constexpr(SWIGLU)


@dataclass(frozen=True, slots=True)
class Tile:
    """How one shape class is cut: rows of W a program, parts of K, K of a bf16 step, warps, stages.

    ``columns`` is the most of x that a program takes: within 16 a column's result is the same at every width.
    """

    rows: int = 64
    parts: int = 1
    k: int = 128
    warps: int = 4
    stages: int = 3
    columns: int = 64


@triton.jit
def _activations(x, at, mask, k, ACT: tl.constexpr):
    return tl.load(x + at[:, None] + k[None, :], mask=mask[:, None], other=0).to(ACT)


@triton.jit
def _natural(i):
    """Where element i of an nvfp4 plane stands in K: a lane of the instruction meets one group alone."""
    return 16 * ((i // 2) % 4) + 2 * (i // 8) + i % 2


@triton.jit
def _columns(x, at, mask, k, ACT: tl.constexpr):
    return tl.load(x + k[:, None] + at[None, :], mask=mask[None, :], other=0).to(ACT)


@triton.jit
def multiply(
    x, at, mask, words, high, scales, n, width, begin, end,
    FORMAT: tl.constexpr, K: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, ACT: tl.constexpr,
):  # fmt: skip
    """[M, BN] float32: x rows at offsets ``at`` times W rows ``n`` over the K steps ``begin..end``.

    ``width`` is the padded K; a step is what one iteration takes: K of bf16, else 256 (q5: 512).
    """
    acc = tl.zeros((M, BN), tl.float32)
    if FORMAT == _BF16:
        k = tl.arange(0, K)
        row = n.to(tl.int64) * width
        for step in range(begin, end):
            w = tl.load(words + row[None, :] + (step * K + k)[:, None])
            acc = tl.dot(_activations(x, at, mask, step * K + k, ACT), w.to(ACT), acc, input_precision="ieee")
        return acc
    # Codes are decoded where the matrix instruction wants its left operand, in registers; columns of x are
    # its right one, eight at a time, so that a narrow call pays for eight.
    acc = tl.zeros((BN, M), tl.float32)
    panel, inside = (n // 64).to(tl.int64), n % 64
    if FORMAT == _FP8:
        i = tl.arange(0, 64)
        row = panel * (width // 128) * 4096 + inside * 64
        for step in range(begin, end):
            for part in tl.static_range(2):
                w = tl.load(words + (row + (2 * step + part) * 4096)[:, None] + i[None, :])
                for plane in tl.static_range(2):
                    xs = _columns(x, at, mask, step * 256 + part * 128 + plane * 64 + i, ACT)
                    acc = tl.dot(d.e4m3(w, plane, ACT), xs, acc, input_precision="ieee")
    elif FORMAT == _Q8:
        i = tl.arange(0, 32)
        row = panel * (width // 64) * 2048 + inside * 32
        scale = scales + panel * (width // 128) * 64 + inside
        first, second = tl.load(scale + 2 * begin * 64), tl.load(scale + (2 * begin + 1) * 64)
        for step in range(begin, end):
            following = tl.minimum(step + 1, end - 1) * 2 * 64
            next_first, next_second = tl.load(scale + following), tl.load(scale + following + 64)
            for part in tl.static_range(4):
                w = tl.load(words + (row + (4 * step + part) * 2048)[:, None] + i[None, :])
                for plane in tl.static_range(2):
                    xs = _columns(x, at, mask, step * 256 + part * 64 + plane * 32 + i, ACT)
                    factor = d.half_at(first, second, 2 * part + plane)
                    acc += tl.dot(d.byte(w, plane, ACT), xs, input_precision="ieee") * factor[:, None]
            first, second = next_first, next_second
    elif FORMAT == _NVFP4:
        i = tl.arange(0, 64)
        k = tl.max_contiguous(tl.multiple_of(_natural(i), 2), 2)
        row = panel * (width // 256) * 4096 + inside * 64
        # Four scales a 32-bit word, two words of a row side by side: a load of their own for each plane, so
        # that they reach the registers of the matrix instruction's left operand as the codes do.
        scale = scales.to(tl.pointer_type(tl.int32)) + (panel * (width // 128) * 64 + inside) * 2
        for step in range(begin, end):
            w = tl.load(words + (row + step * 4096)[:, None] + i[None, :])
            for plane in tl.static_range(4):
                xs = _columns(x, at, mask, step * 256 + plane * 64 + k, ACT)
                word = tl.load(scale[:, None] + (2 * step + plane // 2) * 128 + plane % 2)
                acc = tl.dot(d.e2m1_lanes(w, word, i, plane, ACT), xs, acc, input_precision="ieee")
        if ACT == tl.bfloat16:
            acc *= 256.0
    elif FORMAT == _Q5:
        i = tl.arange(0, 64)
        row = panel * (width // 256) * 4096 + inside * 64
        scale = scales + panel * (width // 256) * 64 + inside
        above = high + panel * (width // 512) * 4096 + inside * 64
        first, second = tl.load(scale + 2 * begin * 64), tl.load(scale + (2 * begin + 1) * 64)
        for step in range(begin, end):
            following = tl.minimum(step + 1, end - 1) * 2 * 64
            next_first, next_second = tl.load(scale + following), tl.load(scale + following + 64)
            bits = tl.load(above[:, None] + step * 4096 + i[None, :])
            for part in tl.static_range(2):
                w = tl.load(words + (row + (2 * step + part) * 4096)[:, None] + i[None, :])
                for plane in tl.static_range(4):
                    xs = _columns(x, at, mask, step * 512 + part * 256 + plane * 64 + i, ACT)
                    factor = d.half_at(first, second, 4 * part + plane)
                    weights = d.wide(w, bits, 4 * part + plane, False, ACT)
                    acc += tl.dot(weights, xs, input_precision="ieee") * factor[:, None]
            first, second = next_first, next_second
    else:
        i = tl.arange(0, 64)
        row = panel * (width // 256) * 4096 + inside * 64
        scale = scales + panel * (width // 256) * 64 + inside
        word = tl.load(scale + begin * 64)
        for step in range(begin, end):
            next_word = tl.load(scale + tl.minimum(step + 1, end - 1) * 64)
            w = tl.load(words + (row + step * 4096)[:, None] + i[None, :])
            if FORMAT == _Q6:
                bits = tl.load(high + (row + step * 4096)[:, None] + i[None, :])
            for plane in tl.static_range(4):
                xs = _columns(x, at, mask, step * 256 + plane * 64 + i, ACT)
                if FORMAT == _Q6:
                    weights = d.wide(w, bits, plane, True, ACT)
                else:
                    weights = d.nibble(w, plane, ACT)
                factor = d.half_of(word, plane)
                acc += tl.dot(weights, xs, input_precision="ieee") * factor[:, None]
            word = next_word
    return tl.trans(acc)


@triton.jit(do_not_specialize=["rows", "parts"])
def _linear(
    x, x_stride, words, high, scales, row_scales, y, y_stride, part_stride, rows, count, width, steps,
    parts, FORMAT: tl.constexpr, ROW_SCALED: tl.constexpr, EPILOGUE: tl.constexpr,
    K: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, ACT: tl.constexpr,
):  # fmt: skip
    tile, part = tl.program_id(0), tl.program_id(1)
    m = tl.program_id(2) * M + tl.arange(0, M)
    n = tile * BN + tl.arange(0, BN)
    begin, end = steps * part // parts, steps * (part + 1) // parts
    acc = multiply(
        x, m * x_stride, m < rows, words, high, scales, n, width, begin, end, FORMAT, K, M, BN, ACT
    )
    if ROW_SCALED:
        acc *= tl.load(row_scales + n)[None, :]
    if EPILOGUE == _SWIGLU:
        gate, up = tl.split(tl.reshape(acc, (M, BN // 2, 2)))
        product = gate / (1 + tl.exp(-gate)) * up
        column = tile * (BN // 2) + tl.arange(0, BN // 2)
        mask = (m < rows)[:, None] & (column < count // 2)[None, :]
        tl.store(y + m[:, None] * y_stride + column[None, :], product.to(y.dtype.element_ty), mask=mask)
    else:
        mask = (m < rows)[:, None] & (n < count)[None, :]
        tl.store(y + part * part_stride + m.to(tl.int64)[:, None] * y_stride + n[None, :], acc, mask=mask)


def columns_tile(rows: int, number: int) -> int:
    """M of a call with ``rows`` columns: 8 and 16 run the same instructions for a column of packed codes."""
    if rows <= 8 and number != BF16:
        return 8
    return 16 if rows <= 16 else 32 if rows <= 32 else 64


def by_lanes(tile: Tile) -> Tile:
    """The same products, bit for bit, by programs of two warps.

    From sm_90 on, four warps would multiply more than eight columns of packed codes by another instruction: a
    row would have other bits (law 8), and its operand lies in other lanes than nvfp4 codes do.
    """
    share = max(1, tile.warps // 2)
    return replace(tile, rows=tile.rows // share, warps=tile.warps // share)


def steps_of(matrix: Packed, tile: Tile) -> int:
    """Iterations over the whole K."""
    return matrix.width // (tile.k if matrix.format == BF16 else 512 if matrix.format == Q5 else 256)


def linear(x: Tensor, matrix: Packed, y: Tensor, tile: Tile, rows: int, epilogue: int = STORE) -> None:
    """``y[p, c] = `` part p of ``x[c] Wᵀ`` (STORE, float32), or SiLU(gate) ⊙ up of interleaved rows (SWIGLU).

    Shapes: ``x`` [rows.., width] activations, zero beyond the matrix's columns; ``y`` [parts, rows.., ≥ N]
    float32, or [rows.., ≥ N / 2] activations. Strides of the last axis are 1.
    """
    assert x.shape[-1] >= matrix.width and x.stride(-1) == 1 and y.stride(-1) == 1  # noqa: PT018
    parts = tile.parts if epilogue == STORE else 1
    part_stride, y_stride = (y.stride(0), y.stride(1)) if epilogue == STORE else (0, y.stride(0))
    assert epilogue != STORE or y.shape[0] >= parts
    m = columns_tile(min(rows, tile.columns), matrix.format)
    if matrix.format != BF16 and m > 8:
        tile = by_lanes(tile)
    grid = (triton.cdiv(matrix.rows, tile.rows), parts, triton.cdiv(rows, m))
    _linear[grid](
        x, x.stride(0), matrix.words, matrix.high, matrix.scales, matrix.row_scales,
        y, y_stride, part_stride, rows, matrix.rows, matrix.width, steps_of(matrix, tile),
        parts, FORMAT=matrix.format, ROW_SCALED=matrix.row_scales.numel() > 0, EPILOGUE=epilogue,
        K=tile.k, M=m, BN=tile.rows, ACT=triton_type(x.dtype),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def triton_type(dtype: torch.dtype) -> tl.dtype:
    """The Triton type of an activation type."""
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}[dtype]


# --- dequantising, for prefill's products and for embeddings -----------------------------------------------


@triton.jit
def _plane(
    words, high, scales, panel, inside, width, step, i, FORMAT: tl.constexpr, PLANE: tl.constexpr
):  # fmt: skip
    """Float32 values of plane PLANE of step ``step`` (packing's table), row scales not applied.

    ``panel``, ``inside`` and ``i`` broadcast to the result's shape.
    """
    if FORMAT == _FP8:
        w = tl.load(words + (panel * (width // 128) + step) * 4096 + inside * 64 + i)
        return d.e4m3(w, PLANE, tl.float32)
    if FORMAT == _Q8:
        w = tl.load(words + (panel * (width // 64) + step) * 2048 + inside * 32 + i)
        word = tl.load(scales + (panel * (width // 128) + step // 2) * 64 + inside)
        place = (step % 2) * 2 + PLANE
        scale = (word >> (16 * place)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        return d.byte(w, PLANE, tl.float32) * scale
    if FORMAT == _NVFP4:
        w = tl.load(words + (panel * (width // 256) + step) * 4096 + inside * 64 + i)
        word = tl.load(scales + (panel * (width // 128) + 2 * step + PLANE // 2) * 64 + inside)
        place = (PLANE % 2) * 4 + (i // 2) % 4
        return d.e2m1(w, d.e4m3_value((word >> (8 * place)).to(tl.int32) & 255), PLANE)
    at = (panel * (width // 256) + step) * 4096 + inside * 64 + i
    w = tl.load(words + at)
    word = tl.load(scales + (panel * (width // 256) + step) * 64 + inside)
    if FORMAT == _Q4:
        return d.nibble(w, PLANE, tl.float32) * d.half_of(word, PLANE)
    low = (w.to(tl.int32) >> (4 * PLANE)) & 15
    if FORMAT == _Q6:
        bits = tl.load(high + at).to(tl.int32)
        return ((low | (((bits >> (2 * PLANE)) & 3) << 4)) - 32).to(tl.float32) * d.half_of(word, PLANE)
    bits = tl.load(high + (panel * (width // 512) + step // 2) * 4096 + inside * 64 + i).to(tl.int32)
    field = (step % 2) * 4 + PLANE
    return ((low | (((bits >> field) & 1) << 4)) - 16).to(tl.float32) * d.half_of(word, PLANE)


@triton.jit
def _dequantise(
    words, high, scales, row_scales, y, y_stride, rows, width,
    FORMAT: tl.constexpr, ROW_SCALED: tl.constexpr, EXTENT: tl.constexpr, PLANES: tl.constexpr,
):  # fmt: skip
    panel, step = tl.program_id(0).to(tl.int64), tl.program_id(1)
    inside, i = tl.arange(0, 64)[:, None], tl.arange(0, EXTENT)[None, :]
    n = panel * 64 + inside
    for plane in tl.static_range(PLANES):
        value = _plane(words, high, scales, panel, inside, width, step, i, FORMAT, plane)
        if ROW_SCALED:
            value *= tl.load(row_scales + n)
        k = step * EXTENT * PLANES + plane * EXTENT + (_natural(i) if FORMAT == _NVFP4 else i)
        tl.store(y + n * y_stride + k, value.to(y.dtype.element_ty), mask=n < rows)


def planes_of(number: int) -> tuple[int, int]:
    """Extent and planes of a word."""
    return {FP8: (64, 2), Q8: (32, 2)}.get(number, (64, 4))


def dequantise(matrix: Packed, out: Tensor) -> Tensor:
    """The matrix [N, width] rounded to ``out``'s type, in its first elements; bf16 comes as it is."""
    if matrix.format == BF16:
        return matrix.words[: matrix.rows]
    extent, planes = planes_of(matrix.format)
    y = out.view(-1)[: matrix.rows * matrix.width].view(matrix.rows, matrix.width)
    grid = (triton.cdiv(matrix.rows, 64), matrix.width // (extent * planes))
    _dequantise[grid](
        matrix.words, matrix.high, matrix.scales, matrix.row_scales, y, y.stride(0), matrix.rows,
        matrix.width,
        FORMAT=matrix.format, ROW_SCALED=matrix.row_scales.numel() > 0, EXTENT=extent, PLANES=planes,
    )  # fmt: skip
    return y


@triton.jit
def _embed(
    tokens, token_stride, words, high, scales, row_scales, y, y_stride, columns, width,
    FORMAT: tl.constexpr, ROW_SCALED: tl.constexpr, EXTENT: tl.constexpr, PLANES: tl.constexpr,
):  # fmt: skip
    row, step = tl.program_id(0), tl.program_id(1)
    token = tl.load(tokens + row * token_stride).to(tl.int64)
    y += row.to(tl.int64) * y_stride
    if FORMAT == _BF16:
        k = step * 1024 + tl.arange(0, 1024)
        tl.store(y + k, tl.load(words + token * width + k, mask=k < columns).to(tl.float32), mask=k < columns)
    else:
        i = tl.arange(0, EXTENT)
        for plane in tl.static_range(PLANES):
            value = _plane(words, high, scales, token // 64, token % 64, width, step, i, FORMAT, plane)
            if ROW_SCALED:
                value *= tl.load(row_scales + token)
            k = step * EXTENT * PLANES + plane * EXTENT + (_natural(i) if FORMAT == _NVFP4 else i)
            tl.store(y + k, value, mask=k < columns)


def embed(tokens: Tensor, matrix: Packed, y: Tensor, rows: int) -> None:
    """``y[r] = float32(W[tokens[r]])``: ``tokens`` int32 of any stride, ``y`` [rows.., N] float32."""
    extent, planes = planes_of(matrix.format)
    steps = triton.cdiv(matrix.columns, 1024 if matrix.format == BF16 else extent * planes)
    _embed[(rows, steps)](
        tokens, tokens.stride(0), matrix.words, matrix.high, matrix.scales, matrix.row_scales,
        y, y.stride(0), matrix.columns, matrix.width,
        FORMAT=matrix.format, ROW_SCALED=matrix.row_scales.numel() > 0, EXTENT=extent, PLANES=planes,
    )  # fmt: skip
