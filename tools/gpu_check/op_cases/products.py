"""Cases of matrices: products in parts and gated, dequantised rows, embeddings; and of the norm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ninfer.fast.ops.gpu_control import ROW_WORDS
from ninfer.fast.ops.linear import gpu as linear
from ninfer.fast.ops.linear import packing as p
from ninfer.fast.ops.rms_norm.gpu import Sums, combine
from ninfer.fast.ops.swiglu import gpu as swiglu_gpu
from ninfer.reference.ops.linear import linear as reference_linear
from ninfer.reference.ops.rms_norm import rms_norm
from ninfer.reference.ops.swiglu import swiglu
from tools.gpu_check.op_cases.setting import Row, Setting, different, distance, poison
from tools.gpu_check.oracle import decoded
from tools.gpu_check.random_model import FORMATS


def legal_planes(number: int, rows: int, columns: int) -> list[Tensor]:
    """Natural planes of a random matrix with every legal code in them."""

    def codes(low: int, high: int, kind: torch.dtype, count: int = columns) -> Tensor:
        return torch.randint(low, high, (rows, count), dtype=kind)

    if number == p.BF16:
        return [torch.randn(rows, columns).bfloat16()]
    if number == p.FP8:
        words = codes(0, 256, torch.uint8)
        words[(words & 127) == 127] = 3
        return [words, torch.rand(rows) + 0.5]
    if number == p.NVFP4:
        scales = codes(0, 127, torch.uint8, columns // 16)
        return [codes(0, 16, torch.uint8), scales, 1e-3 * (torch.rand(rows) + 0.1)]
    bits, group = (8, 32) if number == p.Q8 else (p.BITS[number], 64)
    half = 1 << (bits - 1)
    return [codes(-half + (number == p.Q8), half, torch.int8), torch.rand(rows, columns // group).half()]


def matrix(name: str, rows: int, columns: int) -> tuple[p.Packed, Tensor]:
    """A packed matrix and its float64 values."""
    planes = legal_planes(FORMATS[name], rows, columns)
    return p.repack(FORMATS[name], planes), decoded(FORMATS[name], planes)


def gain(values: Tensor) -> float:
    """What makes products of normal numbers with ``values`` about one."""
    return 1 / float(values.norm(dim=1).mean())


def product_bound(s: Setting, name: str) -> float:
    """Codes are exact in bf16; in fp16 bf16's values are rounded."""
    return s.sums + (s.stored(2) if s.activations == torch.float16 else 0)


def products(
    s: Setting, name: str, rows: int, columns: int, kind: str | None, widths: Sequence[int]
) -> Iterator[Row]:
    """``linear`` in the parts that the table says."""
    packed, values = matrix(name, rows, columns)
    tile = s.tiles.tile(packed, kind)
    tile = replace(tile, parts=1) if kind in ("wide", "head") else tile
    label = f"linear {kind or 'parts'}"
    for width in widths:
        x = s.rows(width, packed.width, columns, gain(values))
        y = poison(tile.parts, width + 1, packed.padded_rows)
        linear.linear(x, packed, y, tile, width)
        wanted = reference_linear(x[:, :columns].double(), values)
        yield Row(label, name, width, distance(y.sum(0), wanted), product_bound(s, name))


def gated(s: Setting, name: str, rows: int, columns: int, widths: Sequence[int]) -> Iterator[Row]:
    """The gated product of interleaved rows."""
    packed, values = matrix(name, rows, columns)
    tile = replace(s.tiles.tile(packed, "wide" if rows >= 8192 else "gated"), parts=1)
    for width in widths:
        x = s.rows(width, packed.width, columns, gain(values))
        y = poison(width + 1, rows // 2 + 8, dtype=s.activations)
        linear.linear(x, packed, y, tile, width, linear.SWIGLU)
        both = reference_linear(x[:, :columns].double(), values)
        wanted = swiglu(both[:, 0::2], both[:, 1::2])
        yield Row("linear gated", name, width, distance(y, wanted), s.stored() + 10 * s.sums)


def rounded(s: Setting, name: str, rows: int, columns: int, widths: Sequence[int]) -> Iterator[Row]:
    """A whole matrix in the activation type, and rows of it as embeddings."""
    packed, values = matrix(name, rows, columns)
    if name != "bf16":
        found = linear.dequantise(packed, poison(rows * packed.width, dtype=s.activations))
        wanted = torch.nn.functional.pad(values, (0, packed.width - columns))
        yield Row("dequantise", name, rows, distance(found, wanted), s.stored() + 1e-6)
    for width in widths:
        control = torch.zeros(width, ROW_WORDS, dtype=torch.int32)
        control[:, 0] = torch.randint(0, rows, (width,))
        control[0, 0] = rows - 1
        y = poison(width + 1, columns)
        linear.embed(control[:, 0], packed, y, width)
        wanted = values[control[:, 0].long()]
        yield Row("embed", name, width, distance(y, wanted), 1e-6)


def activation(s: Setting, columns: int, widths: Sequence[int]) -> Iterator[Row]:
    """The gated product of a prefill chunk."""
    for width in widths:
        x = s.rows(width, 2 * columns, 2 * columns)
        y = poison(width + 1, columns + 8, dtype=s.activations)
        swiglu_gpu.swiglu(x, y, columns, width)
        wanted = swiglu(x[:, 0::2].double(), x[:, 1::2].double())
        yield Row("swiglu", "", width, distance(y, wanted), s.stored() + s.sums)


def norms(s: Setting, hidden: int, parts: int, mixture: bool, widths: Sequence[int]) -> Iterator[Row]:
    """Partial sums join the stream before the norm; of a mixture they are weighed, a shared expert gated."""
    label = "mixture" if mixture else ""
    for width in widths:
        stream, weight = poison(width + 1, hidden), torch.randn(hidden)
        stream[:width] = torch.randn(width, hidden)
        sums = torch.randn(width, parts, hidden).transpose(0, 1) if mixture else None
        sums = torch.randn(parts, width, hidden) if sums is None else sums
        wanted = stream[:width].double()
        strengths = shared = score = None
        if mixture:
            strengths, shared = torch.rand(width, parts), torch.randn(2, width, hidden)
            score = torch.randn(2, width, 33)[:, :, 32]
            wanted = wanted + (sums.double() * strengths.double().T[:, :, None]).sum(0)
            wanted = wanted + torch.sigmoid(score.double().sum(0))[:, None] * shared.double().sum(0)
        else:
            wanted = wanted + sums.double().sum(0)
        y = poison(width + 1, p.padded(hidden, 512), dtype=s.activations)
        combine(stream, Sums(sums, strengths), shared, score, 1 + weight, y, 1e-6, width)
        yield Row("combine", label, width, distance(stream, wanted), 1e-5)
        normed = rms_norm(wanted, (1 + weight).double() - 1, 1e-6)
        yield Row("rms_norm", label, width, distance(y, normed), s.stored() + 1e-5)
    yield from _norm_alone(s, hidden)


def _norm_alone(s: Setting, hidden: int) -> Iterator[Row]:
    stream, weight, y = torch.randn(3, hidden), torch.randn(hidden), poison(4, hidden, dtype=s.activations)
    before = stream.clone()
    combine(stream, None, None, None, weight, y, 1e-6, 3)
    wanted = rms_norm(before.double(), weight.double() - 1, 1e-6)
    yield Row("rms_norm", "alone", 3, distance(y, wanted), s.stored() + 1e-5)
    yield Row("combine", "nothing", 3, different(stream, before), 0)
