"""Attention of a prefill chunk: against float64 over what the pools hold, and bits that no cut changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.fast.ops.control import MAX_COLUMNS
from ninfer.fast.program.table import APPEND, ATTEND_CHUNK
from tests.fast.ops.attending import KV_FORMATS, Attending, Lane, attention_config
from tests.support.fast import Floats, assert_accurate, assert_same_bits

# The last one leaves columns of the 64 empty.
SHAPES = ((4, 2, 64), (8, 1, 128), (2, 2, 256), (6, 2, 64), (6, 1, 64))
OPERATIONS = (APPEND, ATTEND_CHUNK)


def taken_in(attending: Attending, lane: Lane, cuts: Sequence[int], threads: int = 1) -> Floats:
    """The lane's rows, its chunks ending at ``cuts``."""
    parts = []
    for begin, end in zip((0, *cuts[:-1]), cuts, strict=True):
        rows = [(lane, position) for position in range(begin, end)]
        parts.append(attending.compute(rows, OPERATIONS, threads, copied=threads == 1))
    return np.concatenate(parts)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_error_is_that_of_float32(kv_format: str, shape: tuple[int, int, int]) -> None:
    config = attention_config(*shape)
    attending, lane = Attending(config, kv_format), Lane(config, 197, 3)
    attending.place(lane)
    found = taken_in(attending, lane, (64, 70, 128, 191, 192, 193, 197), threads=2)
    wanted = attending.wanted([(lane, position) for position in range(lane.length)])
    assert_accurate(f"chunk-attention-{kv_format}-{shape}", found, *wanted)


@settings(max_examples=30)
@given(
    kv_format=st.sampled_from(KV_FORMATS),
    shape=st.sampled_from(SHAPES),
    length=st.integers(1, 300),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_row_does_not_know_its_chunk(
    kv_format: str, shape: tuple[int, int, int], length: int, seed: int
) -> None:
    config, random = attention_config(*shape), np.random.default_rng(seed)
    lane = Lane(config, length, seed)
    results = []
    for attempt in range(2):
        attending = Attending(config, kv_format, seed=attempt)
        attending.place(lane)
        cuts, end = [], 0
        while end < length:
            end = min(length, end + int(random.integers(1, MAX_COLUMNS + 1)))
            cuts.append(end)
        results.append(taken_in(attending, lane, cuts, threads=1 + attempt))
    assert_same_bits(*results)


@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize("name", ["query", "gate"])
def test_a_bad_row_stays_alone(name: str, kv_format: str) -> None:
    config = attention_config(4, 2, 64)
    attending, lane = Attending(config, kv_format), Lane(config, 100, 1)
    attending.place(lane)
    good = taken_in(attending, lane, (64, 100))
    getattr(lane, name)[70] = np.nan
    found = taken_in(attending, lane, (64, 100))
    others = np.arange(100) != 70
    assert_same_bits(found[others], good[others])
    assert np.isnan(found[70]).all(), f"a {name} that is not a number is lost"


@pytest.mark.parametrize("hot", [3, 150])
def test_scores_from_sharp_to_flat(hot: int) -> None:
    config = attention_config(2, 2, 64)
    attending, lane = Attending(config, "float32"), Lane(config, 200, 4)
    lane.axes[:] = 0
    lane.query[:] = lane.query[0]
    lane.key[hot] = lane.query[0]
    attending.place(lane)
    found = taken_in(attending, lane, (64, 128, 192, 200))
    wanted = attending.wanted([(lane, position) for position in range(lane.length)])
    assert_accurate(f"chunk-attention-hot-{hot}", found, *wanted)
