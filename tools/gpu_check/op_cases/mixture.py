"""Cases of mixtures: the router, experts of rounds, and experts of a prefill chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ninfer.fast.ops.linear.gpu import dequantise
from ninfer.fast.ops.linear.packing import ROW_STEP, padded
from ninfer.fast.ops.moe import gpu as moe
from ninfer.reference.ops.moe_route import moe_route
from ninfer.reference.ops.swiglu import swiglu
from tools.gpu_check.op_cases.products import gain, matrix
from tools.gpu_check.op_cases.setting import Row, Setting, different, distance, poison


def router(s: Setting, experts: int, chosen: int, parts: int, widths: Sequence[int]) -> Iterator[Row]:
    """Choices must be equal, ties going to the lower expert (row 0 has only ties)."""
    for width in widths:
        logits = torch.randn(parts, width, experts + 1)
        logits[:, 0] = 0
        choice = torch.full((width, chosen), -1, dtype=torch.int32)
        strengths = poison(width + 1, chosen)
        moe.route(logits, choice, strengths, experts, width)
        total = torch.zeros(width, experts)
        for part in logits:
            total += part[:, :experts]
        wanted, weights = moe_route(total.double(), chosen)
        yield Row("route", "", width, different(choice.long(), wanted), 0)
        yield Row("route strengths", "", width, distance(strengths, weights), 1e-5)


class _Layer:
    """Stacked experts with their values [experts, rows, K] float64."""

    def __init__(self, name: str, experts: int, rows: int, columns: int) -> None:
        stride = padded(rows, ROW_STEP)
        packed, values = matrix(name, experts * stride, columns)
        self.experts = moe.Experts(packed, rows, stride)
        self.values = values.view(experts, stride, columns)[:, :rows]
        self.gain = gain(values)

    def wanted(self, x: Tensor, choice: Tensor, values: Tensor | None = None) -> Tensor:
        """Each pair's row of ``x`` [pairs, K] times its expert."""
        values = self.values if values is None else values
        flat, columns = choice.flatten().long(), values.shape[2]
        y = torch.zeros(len(flat), values.shape[1], dtype=torch.float64)
        for expert in flat.unique().tolist():
            here = flat == expert
            y[here] = x[here, :columns].double() @ values[expert].T
        return y

    def dequantised(self, kind: torch.dtype) -> Tensor:
        """The matrix as prefill's products take it."""
        packed = self.experts.matrix
        return dequantise(packed, torch.zeros(packed.rows * packed.width, dtype=kind))


def _choice(width: int, experts: int, chosen: int) -> Tensor:
    """For each row, different experts by chance."""
    return torch.rand(width, experts).argsort(1)[:, :chosen].int().contiguous()


def experts_of_rounds(
    s: Setting, name: str, experts: int, chosen: int, hidden: int, mlp: int, widths: Sequence[int]
) -> Iterator[Row]:
    """Every row reads its own experts."""
    first, second = _Layer(name, experts, 2 * mlp, hidden), _Layer(name, experts, hidden, mlp)
    for width in widths:
        x = s.rows(width, first.experts.matrix.width, hidden, first.gain)
        choice = _choice(width, experts, chosen)
        products = torch.zeros(width * chosen, padded(mlp, 512), dtype=s.activations)
        tile = s.tiles.tile(first.experts.matrix, "expert_in")
        moe.expand(x, choice, first.experts, products, tile, width)
        both = first.wanted(x.repeat_interleave(chosen, 0), choice)
        wanted = swiglu(both[:, 0::2], both[:, 1::2])
        yield Row("expand", name, width, distance(products[:, :mlp], wanted), s.stored() + 10 * s.sums)
        # The second product of the very numbers the first one stored.
        products *= second.gain * mlp**0.5
        y = poison(width * chosen + 1, hidden)
        tile = s.tiles.tile(second.experts.matrix, "expert_out")
        moe.contract(products, choice, second.experts, y, tile, width)
        wanted = second.wanted(products, choice)
        yield Row("contract", name, width, distance(y, wanted), s.sums)


def experts_of_a_chunk(
    s: Setting, name: str, experts: int, chosen: int, hidden: int, mlp: int, widths: Sequence[int]
) -> Iterator[Row]:
    """Pairs sorted by expert; the oracle takes the weights as they were rounded for the product."""
    first, second = _Layer(name, experts, 2 * mlp, hidden), _Layer(name, experts, hidden, mlp)
    for width in widths:
        x = s.rows(width, first.experts.matrix.width, hidden, first.gain)
        choice = _choice(width, experts, chosen)
        grouping = moe.group(choice, experts)
        order = torch.argsort(choice.flatten().long(), stable=True)
        yield Row("group", "", width, different(grouping.order.long(), order), 0)
        weights = first.dequantised(s.activations)
        products = torch.zeros(width * chosen, padded(mlp, 512), dtype=s.activations)
        moe.grouped(x, grouping, first.experts, weights, chosen, products, True)
        both = first.wanted(x.repeat_interleave(chosen, 0), choice, _values(first, weights))
        wanted = swiglu(both[:, 0::2], both[:, 1::2])[order]
        yield Row("grouped gated", name, width, distance(products[:, :mlp], wanted), s.stored() + 10 * s.sums)
        weights = second.dequantised(s.activations)
        products *= second.gain * mlp**0.5
        y = poison(width * chosen + 1, hidden, dtype=s.activations)
        moe.grouped(products, grouping, second.experts, weights, chosen, y, False)
        unsorted = torch.zeros_like(products)
        unsorted[order] = products
        wanted = second.wanted(unsorted, choice, _values(second, weights))
        yield Row("grouped", name, width, distance(y, wanted), s.stored() + s.sums)


def _values(layer: _Layer, weights: Tensor) -> Tensor:
    experts, rows, columns = layer.values.shape
    return weights.view(experts, layer.experts.stride, -1)[:, :rows, :columns].double()
