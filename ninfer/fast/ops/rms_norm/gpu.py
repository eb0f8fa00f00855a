"""``rms_norm`` on GPUs, with what comes before it: the partial sums of a product join the residual stream.

One program is one row, so that a row knows no neighbours: ``h += Σ_p s_p · part_p``, parts in order, then
``h += σ(score) · Σ_p shared_p`` (mixtures), then ``y = w ⊙ h / √(mean(h²) + eps)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Partial results [parts, rows.., N] float32 (any strides but the last); ``strengths`` [rows, parts]."""

    parts: Tensor
    strengths: Tensor | None = None


@triton.jit
def _combine(
    hidden, hidden_stride, parts, part_stride, row_stride, strengths, shared, shared_part_stride,
    shared_row_stride, score, score_part_stride, score_row_stride, weight, y, y_stride, columns, eps,
    PARTS: tl.constexpr, WEIGHTED: tl.constexpr, SHARED: tl.constexpr, SCORES: tl.constexpr,
    NORM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    mask = i < columns
    h = tl.load(hidden + row * hidden_stride + i, mask=mask, other=0)
    if PARTS > 0:
        total = tl.zeros((BLOCK,), tl.float32)
        for part in tl.static_range(PARTS):
            x = tl.load(parts + part * part_stride + row * row_stride + i, mask=mask, other=0).to(tl.float32)
            total += x * tl.load(strengths + row * PARTS + part) if WEIGHTED else x
        if SHARED > 0:
            also = tl.zeros((BLOCK,), tl.float32)
            for part in tl.static_range(SHARED):
                at = shared + part * shared_part_stride + row * shared_row_stride
                also += tl.load(at + i, mask=mask, other=0).to(tl.float32)
            gate = 0.0
            for part in tl.static_range(SCORES):
                gate += tl.load(score + part * score_part_stride + row * score_row_stride).to(tl.float32)
            total += also / (1 + tl.exp(-gate))
        h += total
        tl.store(hidden + row * hidden_stride + i, h, mask=mask)
    if NORM:
        scale = tl.rsqrt(tl.sum(h * h) / columns + eps)
        normed = h * scale * tl.load(weight + i, mask=mask, other=0)
        tl.store(y + row * y_stride + i, normed.to(y.dtype.element_ty), mask=mask)


def combine(
    hidden: Tensor,
    sums: Sums | None,
    shared: Tensor | None,
    score: Tensor | None,
    weight: Tensor | None,
    y: Tensor | None,
    eps: float,
    rows: int,
) -> None:
    """Add to ``hidden`` [rows.., N] float32 in place, then norm into ``y`` [rows.., ≥ N] activations.

    ``shared`` [parts, rows.., N] with ``score`` [parts, rows..] of the shared expert; ``weight`` [N] holds
    1 + w; without ``weight`` there is no norm.
    """
    parts = hidden if sums is None else sums.parts
    also = hidden if shared is None else shared
    gate = hidden if score is None else score
    target = hidden if y is None else y
    columns = hidden.shape[1]
    _combine[(rows,)](
        hidden, hidden.stride(0),
        parts, parts.stride(0), parts.stride(-2),
        hidden if sums is None or sums.strengths is None else sums.strengths,
        also, also.stride(0), also.stride(-2),
        gate, gate.stride(0), gate.stride(-1),
        hidden if weight is None else weight, target, target.stride(0), columns, eps,
        PARTS=0 if sums is None else parts.shape[0], WEIGHTED=sums is not None and sums.strengths is not None,
        SHARED=0 if shared is None else shared.shape[0], SCORES=0 if score is None else score.shape[0],
        NORM=weight is not None, BLOCK=triton.next_power_of_2(columns),
        num_warps=16 if columns > 2048 else 8,
    )  # fmt: skip
