"""``linear`` in every stored format: against float64 of the decoded weights, and law 8."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.fast.ops.linear.contract import ADD, TASK_BYTES
from ninfer.reference.ops.linear import linear
from tests.support.fast import (
    PAIRS,
    STORED_FORMATS,
    WIDTHS,
    Floats,
    Poisoned,
    Stored,
    assert_accurate,
    assert_same_bits,
    in_both,
    linear_operation,
    padded_rows,
    random_weights,
    run,
    store,
)

FORMATS = (*STORED_FORMATS, PAIRS)
# The last one has rows larger than a task.
SHAPES = ((1, 64), (5, 130), (64, 192), (33, 1000), (300, 256), (7, 4096), (3, 17000))


def activations(random: np.random.Generator, columns: int, k: int) -> Floats:
    return random.standard_normal((columns, k)).astype(np.float32)


def product(matrix: Stored, x: Floats, rows: tuple[int, int] | None = None, threads: int = 1) -> Floats:
    """``x`` [columns, K] times the rows ``rows`` of the matrix, with nothing written beside them."""
    begin, end = rows or (0, len(matrix.decoded))
    y = Poisoned(len(x), end - begin)
    arranged = matrix.arrange(padded_rows(x))
    run([linear_operation(matrix.segment(arranged, y, rows))], row_count=len(x), threads=threads)
    y.check_margin()
    return y.values


@functools.cache
def wide_case(format_name: str) -> tuple[Stored, Floats, Floats]:
    """A matrix, 64 columns and their products one column at a time."""
    random = np.random.default_rng(8)
    matrix, x = store(format_name, random_weights(random, 9, 450)), activations(random, 64, 450)
    return matrix, x, np.concatenate([product(matrix, x[column : column + 1]) for column in range(64)])


@pytest.mark.parametrize("format_name", FORMATS)
def test_error_is_that_of_float32(format_name: str) -> None:
    random = np.random.default_rng(1)
    found, plain, exact = [], [], []
    for rows, k in SHAPES:
        matrix, x = store(format_name, random_weights(random, rows, k)), activations(random, 64, k)
        found.append(product(matrix, x).T.ravel())
        for side, result in zip((plain, exact), in_both(linear, matrix.read(x), matrix.decoded), strict=True):
            side.append(result.T.ravel())
        zero = ~matrix.decoded.any(axis=1)
        assert rows < 3 or zero.any()
        assert (found[-1].reshape(rows, 64)[zero] == 0).all()
    # Each shape is judged by itself too: a fault at one width must not drown in the others.
    for shape, *case in zip(SHAPES, found, plain, exact, strict=True):
        rows = shape[0] if shape[0] > 1 else 64
        assert_accurate(f"linear-{format_name}-{shape}", *(side.reshape(-1, rows).T for side in case))


@pytest.mark.parametrize("format_name", FORMATS)
def test_column_is_the_same_at_every_width_and_place(format_name: str) -> None:
    matrix, x, alone = wide_case(format_name)
    random = np.random.default_rng(2)
    for width in range(1, 65):
        chosen = random.permutation(64)[:width]
        assert_same_bits(product(matrix, x[chosen]), alone[chosen], f"width {width}")


@pytest.mark.parametrize("format_name", FORMATS)
def test_row_slices_of_a_parent_are_its_rows(format_name: str) -> None:
    matrix, x, alone = wide_case(format_name)
    for begin, end in ((0, 1), (3, 9), (4, 5), (8, 9), (0, 9)):
        assert_same_bits(product(matrix, x[:5], (begin, end)), alone[:5, begin:end])


@pytest.mark.parametrize("format_name", FORMATS)
def test_values_of_zero_weights_and_inputs_are_exact(format_name: str) -> None:
    """One weight or one input at a time: position by position, nothing is permuted or shifted."""
    k = 192
    weights = np.zeros((k, k), np.float32)
    np.fill_diagonal(weights, np.arange(1, k + 1, dtype=np.float32) / 128)
    matrix = store(format_name, weights)
    x = np.arange(1, k + 1, dtype=np.float32)[None]
    assert_same_bits(product(matrix, x), (np.diag(matrix.decoded) * matrix.read(x)).astype(np.float32))


@given(
    widths=st.lists(st.sampled_from(WIDTHS), min_size=1, max_size=2),
    names=st.lists(st.sampled_from(FORMATS), min_size=1, max_size=4),
    k=st.sampled_from((64, 130, 500, 1088)),
    threads=st.sampled_from((1, 2)),
    seed=st.integers(0, 2**32 - 1),
)
def test_segments_of_many_formats_in_one_call(
    widths: list[int], names: list[str], k: int, threads: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    matrices = [store(name, random_weights(random, int(random.integers(1, 70)), k)) for name in names]
    for width in widths:
        x = activations(random, width, k)
        ys = [Poisoned(width, len(matrix.decoded)) for matrix in matrices]
        arranged = [matrix.arrange(padded_rows(x)) for matrix in matrices]
        segments = [m.segment(a, y) for m, a, y in zip(matrices, arranged, ys, strict=True)]
        run([linear_operation(*segments)], row_count=width, threads=threads)
        for matrix, y in zip(matrices, ys, strict=True):
            y.check_margin()
            assert_same_bits(y.values, product(matrix, x))
            np.testing.assert_allclose(y.values, matrix.read(x) @ matrix.decoded.T, atol=1e-4)


@pytest.mark.parametrize("format_name", FORMATS)
def test_segments_larger_than_a_task(format_name: str) -> None:
    random = np.random.default_rng(3)
    matrix = store(format_name, random_weights(random, 700, 512))
    assert sum(plane.nbytes for plane in matrix.planes.values()) > 2 * TASK_BYTES
    x = activations(random, 6, 512)
    whole = product(matrix, x, threads=2)
    pieces = [product(matrix, x, (begin, min(700, begin + 150))) for begin in range(0, 700, 150)]
    assert_same_bits(whole, np.concatenate(pieces, axis=1))


@pytest.mark.parametrize("format_name", FORMATS)
def test_add_joins_the_residual(format_name: str) -> None:
    matrix, x, alone = wide_case(format_name)
    residual = np.random.default_rng(4).standard_normal((64, 9)).astype(np.float32)
    for width in WIDTHS:
        y = Poisoned(width, 9)
        y.values[:] = residual[:width]
        arranged = matrix.arrange(padded_rows(x[:width]))
        run([linear_operation(matrix.segment(arranged, y, mode=ADD))], row_count=width)
        y.check_margin()
        assert_same_bits(y.values, residual[:width] + alone[:width])


@pytest.mark.parametrize("format_name", FORMATS)
def test_bad_column_stays_alone(format_name: str) -> None:
    matrix, x, alone = wide_case(format_name)
    for bad in (np.nan, np.inf):
        spoiled = x[:7].copy()
        spoiled[2] = bad
        good = [0, 1, 3, 4, 5, 6]
        assert_same_bits(product(matrix, spoiled)[good], alone[good])


@pytest.mark.parametrize("format_name", ["bf16", PAIRS, "q4_g64_fp16"])
def test_columns_beyond_a_rounds_are_computed_as_a_rounds_are(format_name: str) -> None:
    """A prompt's chunk takes blocks of columns in turn, each a whole tile or not."""
    random = np.random.default_rng(6)
    matrix, x = store(format_name, random_weights(random, 70, 3000)), activations(random, 200, 3000)
    alone = np.concatenate([product(matrix, x[begin : begin + 7]) for begin in range(0, 200, 7)])
    for count in (65, 127, 128, 131, 200):
        assert_same_bits(product(matrix, x[:count], threads=2), alone[:count], f"{count} columns")
