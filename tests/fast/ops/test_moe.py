"""Mixture of experts: the choice itself, mixed weight formats against float64, and law 8."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ninfer.fast.ops.linear.contract import SEGMENT_FIELDS
from ninfer.fast.ops.moe import contract as c
from ninfer.fast.program.table import CONTRACT, EXPAND, ROUTE
from ninfer.reference.ops.moe_experts import moe_experts
from ninfer.reference.ops.moe_route import moe_route
from tests.support.fast import (
    WIDTHS,
    Array,
    Floats,
    Poisoned,
    Stored,
    address,
    assert_accurate,
    assert_same_bits,
    fields,
    padded,
    padded_rows,
    random_weights,
    run,
    store,
)


def routed(logits: Floats, chosen: int, threads: int = 1) -> tuple[Array, Floats]:
    """Experts [rows, k] and their weights by the operation alone."""
    rows, experts = logits.shape
    choice = np.full((rows + 1, chosen), -7, np.int64)
    weights = Poisoned(rows, chosen)
    flat = np.full((rows + 1, chosen), np.nan, np.float32)
    named = {"LOGITS": address(logits), "LOGITS_STRIDE": logits.strides[0], "EXPERTS": experts}
    targets = {"PER_TOKEN": chosen, "CHOICE": address(choice), "WEIGHTS": address(flat)}
    run([(ROUTE, fields(c, **named, **targets))], row_count=rows, threads=threads)
    assert (choice[-1] == -7).all()
    assert np.isnan(flat[-1]).all()
    weights.values[:] = flat[:-1]
    return choice[:-1], weights.values


@pytest.mark.parametrize(("experts", "chosen"), [(8, 2), (8, 8), (60, 4), (256, 8)])
def test_choice_and_weights(experts: int, chosen: int) -> None:
    random = np.random.default_rng(experts)
    logits = (2 * random.standard_normal((64, experts))).astype(np.float32)
    wanted, exact = moe_route(torch.from_numpy(logits).double(), chosen)
    _, plain = moe_route(torch.from_numpy(logits), chosen)
    found, weights = routed(logits, chosen, threads=2)
    np.testing.assert_array_equal(found, wanted.numpy())
    assert_accurate(f"route-{experts}-{chosen}", weights, plain.double().numpy(), exact.numpy())
    random = np.random.default_rng(1)
    for width in WIDTHS:
        rows = random.permutation(64)[:width]
        choice, alone = routed(logits[rows], chosen)
        np.testing.assert_array_equal(choice, found[rows])
        assert_same_bits(alone, weights[rows])


@given(
    logits=st.lists(st.sampled_from((-3.0, -0.0, 0.0, 0.5, 0.5, 2.0)), min_size=4, max_size=40),
    chosen=st.integers(1, 4),
)
def test_ties_go_to_the_lower_expert(logits: list[float], chosen: int) -> None:
    scores = np.array([logits], np.float32)
    found, weights = routed(scores, chosen)
    order = sorted(range(len(logits)), key=lambda expert: (-logits[expert], expert))
    assert found[0].tolist() == order[:chosen]
    assert weights.sum() == pytest.approx(1, abs=1e-6)


def test_far_apart_logits_neither_overflow_nor_vanish() -> None:
    found, weights = routed(np.array([[-1e4, 300, 1e4, 299]], np.float32), 3)
    assert found.tolist() == [[2, 1, 3]]
    assert weights.tolist() == [[1, 0, 0]]


@dataclass(frozen=True, slots=True)
class Shape:
    """A mixture's geometry and the formats of gate/up and down."""

    hidden: int
    width: int
    experts: int
    chosen: int
    expand: str
    contract: str


SHAPES = {
    "published": Shape(128, 64, 8, 2, "q4_g64_fp16", "q5_g64_fp16"),
    "late-layer": Shape(64, 192, 8, 3, "q4_g64_fp16", "q6_g64_fp16"),
    "bytes": Shape(192, 96, 6, 2, "q8_g32_fp16", "q8_g32_fp16"),
    "words": Shape(64, 160, 5, 5, "bf16", "fp32"),
    "mixed-orders": Shape(64, 128, 4, 1, "q8_g32_fp16", "q4_g64_fp16"),
    "floats": Shape(128, 64, 4, 2, "nvfp4", "fp8_e4m3fn_row_bf16"),
    "odd-width": Shape(64, 40, 4, 2, "q4_g64_fp16", "q5_g64_fp16"),
}
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


class Mixture:
    """Experts in their formats, and the inputs of 64 rows."""

    def __init__(self, shape: Shape) -> None:
        self.shape, random = shape, np.random.default_rng(shape.width)
        sizes = [(shape.expand, shape.width, shape.hidden)] * 2 + [
            (shape.contract, shape.hidden, shape.width)
        ]
        self.experts: list[list[Stored]] = [
            [store(name, random_weights(random, rows, columns)) for name, rows, columns in sizes]
            for _ in range(shape.experts)
        ]
        self.table = np.array([[m.segment() for m in matrices] for matrices in self.experts], np.int64)
        assert self.table.shape == (shape.experts, 3, SEGMENT_FIELDS)
        self.x, self.shared, self.residual = random.standard_normal((3, 64, shape.hidden)).astype(np.float32)
        self.logits = random.standard_normal((64, shape.experts)).astype(np.float32)
        self.score = np.linspace(-30, 30, 64, dtype=np.float32).reshape(64, 1)

    def compute(self, rows: Array, threads: int = 1) -> Floats:
        """The residual stream of these rows after the mixture."""
        shape, (gate, _, down) = self.shape, self.experts[0]
        x = gate.arrange(padded_rows(self.x[rows]))
        logits, score, shared = (
            np.ascontiguousarray(a[rows]) for a in (self.logits, self.score, self.shared)
        )
        h = Poisoned(len(rows), shape.hidden)
        h.values[:] = self.residual[rows]
        choice = np.full((len(rows), shape.chosen), -7, np.int64)
        weights = np.full((len(rows), shape.chosen), np.nan, np.float32)
        # Columns beyond the width are zeros that nothing writes, as in every activation buffer.
        products = np.zeros((len(rows) * shape.chosen, padded(shape.width)), np.float32)
        products[:, : shape.width] = np.nan
        scratch = np.full((threads, 2 * c.TASK_ROWS), np.nan, np.float32)
        named = {
            "LOGITS": address(logits), "LOGITS_STRIDE": logits.strides[0], "EXPERTS": shape.experts,
            "PER_TOKEN": shape.chosen, "CHOICE": address(choice), "WEIGHTS": address(weights),
            "TABLE": address(self.table), "X": address(x), "X_STRIDE": x.strides[0], "WIDTH": shape.width,
            "HIDDEN": shape.hidden, "PRODUCTS": address(products), "PRODUCTS_STRIDE": products.strides[0],
            "PERMUTED": int(down.is_permuted), "SHARED": address(shared), "SHARED_STRIDE": shared.strides[0],
            "SHARED_SCORE": address(score), "SCORE_STRIDE": score.strides[0], "H": h.address,
            "H_STRIDE": h.stride, "SCRATCH": address(scratch), "SCRATCH_STRIDE": scratch.strides[0],
        }  # fmt: skip
        descriptor = fields(c, **named)
        operations = [(opcode, descriptor) for opcode in (ROUTE, EXPAND, CONTRACT)]
        run(operations, row_count=len(rows), threads=threads)
        h.check_margin()
        return h.values

    def wanted(self, dtype: torch.dtype) -> Array:
        """All rows by the reference's operations."""

        def tensor(values: Array) -> Tensor:
            return torch.from_numpy(values).to(dtype)

        with torch.inference_mode():
            gate, up, down = (
                [tensor(matrix.decoded) for matrix in part] for part in zip(*self.experts, strict=True)
            )
            experts, weights = moe_route(tensor(self.logits), self.shape.chosen)
            routed = moe_experts(tensor(self.x), experts, weights, gate, up, down)
            shared = torch.sigmoid(tensor(self.score)) * tensor(self.shared)
            return (tensor(self.residual) + routed + shared).numpy().astype(np.float64)


@shapes
def test_error_is_that_of_float32(shape: Shape) -> None:
    mixture = Mixture(shape)
    # The residual would hide the mixture's own error, so that is measured without it.
    mixture.residual[:] = 0
    plain, exact = (mixture.wanted(dtype) for dtype in (torch.float32, torch.float64))
    found = mixture.compute(np.arange(64), threads=2)
    assert_accurate(f"mixture-{shape.expand}-{shape.contract}", found, plain, exact)


@shapes
def test_row_is_the_same_at_every_width_and_place(shape: Shape) -> None:
    mixture = Mixture(shape)
    alone = np.concatenate([mixture.compute(np.array([row])) for row in range(64)])
    assert np.isfinite(alone).all()
    random = np.random.default_rng(2)
    for width in WIDTHS:
        rows = random.permutation(64)[:width]
        assert_same_bits(mixture.compute(rows, threads=1 + width % 3), alone[rows], f"width {width}")


@shapes
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_row_stays_alone(shape: Shape, bad: float) -> None:
    """One thread computes the bad row first, so that its scratch is spoiled for the rows that follow."""
    mixture = Mixture(shape)
    rows = np.arange(6)
    alone = mixture.compute(rows)
    mixture.x[0] = bad
    found = mixture.compute(rows)
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1:]).all()
    assert_same_bits(found[1:], alone[1:], "a neighbour of a bad row")
