"""Byte coverage against a plain set of bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ninfer.artifact.coverage import Coverage


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(-2, 42), st.integers(-2, 42)), max_size=30))
def test_coverage_equals_a_set_of_bytes(size: int, ranges: list[tuple[int, int]]) -> None:
    covered, written = Coverage(size), set[int]()
    for begin, end in ranges:
        fresh = 0 <= begin < end <= size and not written & set(range(begin, end))
        assert covered.add(begin, end) == fresh
        if fresh:
            written |= set(range(begin, end))
        missing = sorted(set(range(size)) - written)
        hole = covered.first_hole()
        assert (hole is None) == (not missing)
        if hole is not None:
            assert hole[0] == missing[0]
            assert hole[1] == next((b for b in range(hole[0], size) if b in written), size)


def test_padding_counts_as_written() -> None:
    covered = Coverage(10, [(4, 6)])
    assert covered.add(0, 4)
    assert covered.first_hole() == (6, 10)
    assert covered.add(6, 10)
    assert covered.first_hole() is None
