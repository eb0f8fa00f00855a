"""``swiglu`` against float64 over the whole range of gates, and law 8 where rows are cut into slices."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer.fast.ops.swiglu import contract
from ninfer.fast.ops.swiglu.cpu import TASK_ELEMENTS
from ninfer.fast.program.table import SWIGLU
from ninfer.reference.ops.swiglu import swiglu
from tests.support.fast import (
    WIDTHS,
    Copies,
    Floats,
    Poisoned,
    address,
    assert_accurate,
    assert_same_bits,
    fields,
    in_both,
    run,
)


def gated(gate: Floats, up: Floats) -> Floats:
    """All rows by one operation."""
    y, copies = Poisoned(*gate.shape), Copies(*gate.shape)
    gate, up = np.ascontiguousarray(gate), np.ascontiguousarray(up)
    source = {"GATE": address(gate), "UP": address(up), "STRIDE": gate.strides[0], "N": gate.shape[1]}
    target = {"Y": y.address, "Y_STRIDE": y.stride, **copies.fields}
    run([(SWIGLU, fields(contract, **source, **target))], row_count=len(gate), threads=1 + len(gate) % 2)
    y.check_margin()
    copies.check(y.values)
    return y.values


def case(columns: int, rows: int = 64, spread: float = 3.0) -> tuple[Floats, Floats]:
    random = np.random.default_rng(columns)
    gate, up = random.standard_normal((2, rows, columns)).astype(np.float32)
    return gate * np.float32(spread), up


@pytest.mark.parametrize("columns", [64, 1088, 2112])
def test_error_is_that_of_float32(columns: int) -> None:
    gate, up = case(columns)
    plain, exact = in_both(swiglu, gate, up)
    assert_accurate(f"swiglu-{columns}", gated(gate, up), plain, exact)


def test_every_gate_is_right_to_a_few_units_in_the_last_place() -> None:
    """One value a row: its own relative error, where the row's mean would hide it."""
    gate = np.linspace(-86, 100, 64 * 640, dtype=np.float32).reshape(64, 640)
    up = np.ones_like(gate)
    _, exact = in_both(swiglu, gate, up)
    error = np.abs(gated(gate, up) - exact) / np.maximum(np.abs(exact), np.finfo(np.float32).tiny)
    print(f"op=silu worst_relative_error={error.max():.2e} at gate={gate.flat[error.argmax()]:.3f}")
    assert error.max() < 4e-7


def test_gates_beyond_the_range_of_exp() -> None:
    gate = np.repeat(np.array([-1e30, -1e4, -200, -88, 0, 89, 200, 1e4, 1e30], np.float32), 64).reshape(9, 64)
    found = gated(gate, np.ones_like(gate))
    np.testing.assert_allclose(found, np.where(gate > 0, gate, 0), atol=1e-7)


@pytest.mark.parametrize("columns", [64, TASK_ELEMENTS, TASK_ELEMENTS + 64, 3 * TASK_ELEMENTS])
def test_row_is_the_same_at_every_width_and_place(columns: int) -> None:
    gate, up = case(columns)
    alone = np.concatenate([gated(gate[row : row + 1], up[row : row + 1]) for row in range(64)])
    random = np.random.default_rng(1)
    for width in WIDTHS:
        chosen = random.permutation(64)[:width]
        assert_same_bits(gated(gate[chosen], up[chosen]), alone[chosen])


@pytest.mark.parametrize("side", ["gate", "up"])
def test_what_is_not_a_number_stays_so_and_alone(side: str) -> None:
    gate, up = case(128, rows=3)
    alone = gated(gate, up)
    (gate if side == "gate" else up)[1, 5] = np.nan
    found = gated(gate, up)
    assert np.isnan(found[1, 5])
    found[1, 5] = alone[1, 5]
    assert_same_bits(found, alone)
