"""Logical shapes, row ranges and cuts against flat element lists."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.artifact import TensorObject, shapes
from ninfer.errors import ArtifactError

Piece = tuple[TensorObject, int, int]


def tensor(*shape: int, name: str = "a") -> TensorObject:
    return TensorObject(name, shape, "bf16", "contiguous_le_v1", 0, 1)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([(tensor(4, 6), 0, 24)], (4, 6)),
        ([(tensor(), 0, 1)], ()),
        ([(tensor(2, 3, 4), 0, 24)], (2, 3, 4)),
        ([(tensor(4, 6), 6, 18)], (2, 6)),
        ([(tensor(4, 6), 5, 18)], (13,)),
        ([(tensor(4, 6), 6, 18), (tensor(9, 6), 0, 6)], (3, 6)),
        ([(tensor(4, 6), 6, 18), (tensor(9, 3), 0, 6)], (18,)),
        ([(tensor(10), 3, 5), (tensor(2), 0, 2)], (4,)),
        ([(tensor(5, 2, 3), 6, 12)], (1, 2, 3)),
    ],
)
def test_logical_shape(pieces: list[Piece], expected: tuple[int, ...]) -> None:
    assert shapes.logical_shape(pieces) == expected


def test_the_models_shape_wins_over_parts_but_must_equal_a_whole_object() -> None:
    pieces = [(tensor(4, 4), 0, 16)]
    assert shapes.resolve(pieces, (2, 2, 4), False, "p") == (2, 2, 4)
    assert shapes.resolve(pieces, None, True, "p") == shapes.resolve(pieces, (4, 4), True, "p") == (4, 4)
    for shape, exact in [((2, 2, 4), True), ((4, 5), False), ((), False)]:
        with pytest.raises(ArtifactError, match="the model needs"):
            shapes.resolve(pieces, shape, exact, "p")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (slice(None), (0, 20, (5, 4))),
        (slice(1, 3), (4, 12, (2, 4))),
        (slice(-2, None), (12, 20, (2, 4))),
        (slice(3, 99), (12, 20, (2, 4))),
        (slice(4, 2), (16, 16, (0, 4))),
    ],
)
def test_row_slices_behave_like_slices(rows: slice, expected: Any) -> None:
    assert shapes.slice_rows((5, 4), rows, "p") == expected


def test_scalars_and_steps_have_no_row_slices() -> None:
    with pytest.raises(ArtifactError, match="scalar"):
        shapes.slice_rows((), slice(0, 1), "p")
    with pytest.raises(ArtifactError, match="steps of 1"):
        shapes.slice_rows((5,), slice(0, 4, 2), "p")


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=5), st.data())
def test_cut_takes_the_same_elements_as_a_flat_slice(
    ranges: list[tuple[int, int]], data: st.DataObject
) -> None:
    pieces = [(tensor(100, name=str(i)), begin, begin + n) for i, (begin, n) in enumerate(ranges)]
    flat = [(piece.id, element) for piece, begin, end in pieces for element in range(begin, end)]
    begin = data.draw(st.integers(0, len(flat)))
    end = data.draw(st.integers(begin, len(flat)))
    kept = shapes.cut(pieces, begin, end)
    assert [(piece.id, e) for piece, first, last in kept for e in range(first, last)] == flat[begin:end]
