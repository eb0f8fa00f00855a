"""``rms_norm`` against float64, its copies, and law 8."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer.fast.ops.rms_norm import contract
from ninfer.fast.program.table import NORM
from ninfer.reference.ops.rms_norm import rms_norm
from tests.support.fast import (
    WIDTHS,
    Copies,
    Floats,
    Poisoned,
    address,
    assert_accurate,
    assert_same_bits,
    fields,
    float_bits,
    in_both,
    run,
)

EPS = 1e-6


def normed(x: Floats, weight: Floats, copied: bool = True, eps: float = EPS) -> Floats:
    """All rows by one operation; ``weight`` is the distance from 1."""
    scale, y, copies = np.float32(1) + weight, Poisoned(*x.shape), Copies(*x.shape)
    source = {"X": address(x), "X_STRIDE": x.strides[0], "WEIGHT": address(scale), "N": x.shape[1]}
    target = {"Y": y.address, "Y_STRIDE": y.stride, "EPS_BITS": float_bits(eps)}
    if copied:
        target |= copies.fields
    run([(NORM, fields(contract, **source, **target))], row_count=len(x), threads=1 + len(x) % 2)
    y.check_margin()
    if copied:
        copies.check(y.values)
    else:
        copies.check_untouched()
    return y.values


def case(columns: int, rows: int = 64) -> tuple[Floats, Floats]:
    """Rows of very different sizes, and a weight."""
    random = np.random.default_rng(columns)
    sizes = np.float32(10) ** random.uniform(-4, 4, (rows, 1)).astype(np.float32)
    x = random.standard_normal((rows, columns)).astype(np.float32) * sizes
    return x, random.normal(0, 0.3, columns).astype(np.float32)


@pytest.mark.parametrize("columns", [64, 192, 256, 2048])
def test_error_is_that_of_float32(columns: int) -> None:
    x, weight = case(columns)
    plain, exact = in_both(lambda x, w: rms_norm(x, w, EPS), x, weight)
    assert_accurate(f"rms_norm-{columns}", normed(x, weight), plain, exact)


@pytest.mark.parametrize("columns", [64, 320])
def test_row_is_the_same_at_every_width_and_place(columns: int) -> None:
    x, weight = case(columns)
    alone = np.concatenate([normed(x[row : row + 1], weight) for row in range(len(x))])
    random = np.random.default_rng(1)
    for width in WIDTHS:
        chosen = random.permutation(64)[:width]
        assert_same_bits(normed(x[chosen], weight), alone[chosen])
    assert_same_bits(normed(x, weight, copied=False), alone)


def test_rows_of_zeros_and_epsilon() -> None:
    weight = np.zeros(64, np.float32)
    assert_same_bits(normed(np.zeros((2, 64), np.float32), weight), np.zeros((2, 64), np.float32))
    x = np.full((1, 64), 3.0, np.float32)
    np.testing.assert_allclose(normed(x, weight, eps=16.0), 3 / 5, rtol=1e-6)


def test_bad_row_stays_alone() -> None:
    x, weight = case(128, rows=3)
    alone = normed(x, weight)
    x[1, 7] = np.nan
    found = normed(x, weight)
    assert np.isnan(found[1]).all()
    assert_same_bits(found[[0, 2]], alone[[0, 2]])
