"""Chains: whoever runs which rows of them never matters, and a chain never crosses what needs other rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.fast.program import table as t
from ninfer.fast.program.chains import block_rows, chain_ends
from ninfer.fast.program.round import RoundRunner
from tests.fast.program.tables import Stream
from tests.support.fast import Floats, assert_same_bits

WIDE = 200
ACROSS_ROWS = (t.ATTEND, t.CONVOLVE, t.RECUR, t.ATTEND_CHUNK, t.ROUTE, t.FOLD)


@given(st.lists(st.sampled_from((t.NORM, t.LINEAR, t.SWIGLU, t.SCAN, *ACROSS_ROWS)), max_size=12))
def test_a_chain_ends_where_rows_meet(opcodes: list[int]) -> None:
    ends = chain_ends(np.array(opcodes, np.int64))
    for index, opcode in enumerate(opcodes):
        end = index
        while end < len(opcodes) and opcodes[end] not in ACROSS_ROWS:
            end += 1
        assert ends[index] == end
        assert (end == index) == (opcode in ACROSS_ROWS)


@given(st.integers(0, 5000), st.integers(1, 32))
def test_blocks_share_the_rows_evenly(rows: int, threads: int) -> None:
    size = block_rows(rows, threads)
    if rows < 16 * threads:
        assert size == 0
        return
    assert size % 4 == 0
    assert 16 <= size <= 64
    blocks = -(-rows // size)
    # As few turns as blocks of 64 rows allow; the last one is not short of more than rounding takes.
    turns = -(-rows // (64 * threads))
    assert threads * (turns - 1) < blocks <= threads * turns


def stream(threads: int, rows: int, together: bool) -> Floats:
    made = Stream(WIDE)
    runner = RoundRunner(made.table(), threads, WIDE)
    for _ in range(3):
        if together:
            runner.run(0, made.operations, rows, 0)
        else:
            for index in range(made.operations):
                runner.run(index, index + 1, rows, 0)
    runner.close()
    return made.values


@pytest.mark.parametrize("rows", [31, 32, 61, 64, 65, 199])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_chains_give_the_bits_of_single_operations(threads: int, rows: int) -> None:
    assert_same_bits(stream(threads, rows, together=True), stream(1, rows, together=False))


def test_a_range_ends_inside_a_chain() -> None:
    made = Stream(WIDE)
    runner = RoundRunner(made.table(), 2, WIDE)
    for begin, end in ((0, 3), (3, 3), (3, made.operations)):
        runner.run(begin, end, WIDE, 0)
    runner.close()
    whole = Stream(WIDE)
    runner = RoundRunner(whole.table(), 1, WIDE)
    runner.run(0, whole.operations, WIDE, 0)
    assert_same_bits(made.values, whole.values)
