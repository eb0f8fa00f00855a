"""Paged attention against float64 over what the pools hold, and law 8 over widths, batches and pages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.fast.ops.attention.contract import SPLIT_TOKENS
from ninfer.fast.program.table import APPEND, ATTEND, ATTEND_CHUNK, MERGE
from tests.fast.ops.attending import KV_FORMATS, Attending, Lane, attention_config
from tests.support.fast import WIDTHS, assert_accurate, assert_same_bits

SHAPES = ((4, 2, 64), (8, 1, 128), (2, 2, 256), (6, 2, 64))
LENGTHS = (1, 2, 63, 64, 65, 127, 128, 129, 200, 640)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_error_is_that_of_float32(kv_format: str, shape: tuple[int, int, int]) -> None:
    config = attention_config(*shape)
    attending = Attending(config, kv_format)
    lanes = [Lane(config, length, seed) for seed, length in enumerate(LENGTHS)]
    for lane in lanes:
        attending.place(lane)
        attending.append(lane, lane.length - 1, chunk=37)
    rows = [(lane, lane.length - 1) for lane in lanes]
    found = attending.compute(rows, threads=2)
    assert_accurate(f"attention-{kv_format}-{shape}", found, *attending.wanted(rows))


@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_rows_that_cross_a_split(kv_format: str) -> None:
    """4,100 tokens beside short lanes: one split, two splits of which one has a single key, and more."""
    config = attention_config(4, 2, 64)
    attending = Attending(config, kv_format)
    long, short = Lane(config, SPLIT_TOKENS + 4, 1), Lane(config, 70, 2)
    for lane in (long, short):
        attending.place(lane)
        attending.append(lane, lane.length)
    rows = [(long, SPLIT_TOKENS), (short, 69), *((long, SPLIT_TOKENS + step) for step in (-2, -1, 1, 2, 3))]
    found = attending.compute(rows, threads=2)
    assert_accurate(f"attention-{kv_format}-long", found, *attending.wanted(rows))
    for index, row in enumerate(rows):
        assert_same_bits(attending.compute([row]), found[index : index + 1])
        assert_same_bits(attending.compute([row], max_splits=5), found[index : index + 1])


@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_row_is_the_same_at_every_width_and_place(kv_format: str) -> None:
    config = attention_config(4, 2, 64)
    attending = Attending(config, kv_format, pages=300)
    lanes = [Lane(config, int(length), seed) for seed, length in enumerate(np.linspace(1, 280, 64))]
    for lane in lanes:
        attending.place(lane)
        attending.append(lane, lane.length)
    rows = [(lane, lane.length - 1) for lane in lanes]
    alone = np.concatenate([attending.compute([row]) for row in rows])
    random = np.random.default_rng(3)
    for width in WIDTHS:
        chosen = random.permutation(64)[:width]
        found = attending.compute([rows[index] for index in chosen], threads=1 + width % 2)
        assert_same_bits(found, alone[chosen], f"width {width}")


@settings(max_examples=30)
@given(
    kv_format=st.sampled_from(KV_FORMATS),
    shape=st.sampled_from(SHAPES),
    columns=st.lists(
        st.tuples(st.sampled_from((0, 1, 40, 61, 64, 127, 200)), st.sampled_from(WIDTHS)),
        min_size=1,
        max_size=5,
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_verify_blocks_equal_single_steps(
    kv_format: str, shape: tuple[int, int, int], columns: list[tuple[int, int]], seed: int
) -> None:
    """Each lane's new columns one by one; then all of all lanes at once, on other pages, in other order."""
    config, random = attention_config(*shape), np.random.default_rng(seed)
    room, blocks = 64, []
    for context, width in columns:
        if width <= room:
            room -= width
            blocks.append((context, width))
    lanes = [Lane(config, context + width, seed + index) for index, (context, width) in enumerate(blocks)]
    steps, batch = Attending(config, kv_format, seed=1), Attending(config, kv_format, seed=2)
    single = {}
    for lane, (context, _) in zip(lanes, blocks, strict=True):
        steps.place(lane)
        steps.append(lane, context)
        single[lane] = np.concatenate([steps.compute([(lane, p)]) for p in range(context, lane.length)])
    order = [(lanes[index], blocks[index][0]) for index in random.permutation(len(lanes))]
    rows = []
    for lane, context in order:
        batch.place(lane)
        batch.append(lane, context, chunk=int(random.integers(1, 65)))
        rows += [(lane, position) for position in range(context, lane.length)]
    found = batch.compute(rows, threads=int(random.integers(1, 4)))
    assert_same_bits(found, np.concatenate([single[lane] for lane, _ in order]))


def test_gates_from_shut_to_open() -> None:
    config = attention_config(4, 2, 64)
    attending, lane = Attending(config, "float32"), Lane(config, 64, 1)
    lane.gate[:] = np.random.default_rng(1).permuted(np.linspace(-90, 90, lane.gate.size)).reshape(64, -1)
    attending.place(lane)
    rows = [(lane, position) for position in range(64)]
    found = attending.compute(rows, copied=False)
    assert_accurate("attention-gates", found, *attending.wanted(rows))


@pytest.mark.parametrize("hot", [3, 150, None])
def test_scores_from_sharp_to_flat(hot: int | None) -> None:
    """One key far above the others in the first page, in a later one, or nowhere."""
    config = attention_config(2, 2, 64)
    attending, lane = Attending(config, "float32"), Lane(config, 300, 4)
    lane.axes[:] = 0
    rows = [(lane, position) for position in range(240, 300)]
    if hot is None:
        lane.key[:] = lane.key[0]
    else:
        lane.query[:] = lane.query[0]
        lane.key[hot] = lane.query[0]
    attending.place(lane)
    attending.append(lane, 300)
    found = attending.compute(rows)
    assert_accurate(f"attention-hot-{hot}", found, *attending.wanted(rows))


@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_bad_row_stays_alone(kv_format: str) -> None:
    config = attention_config(4, 2, 64)
    attending = Attending(config, kv_format)
    lanes = [Lane(config, length, length) for length in (70, 71, 140)]
    for lane in lanes:
        attending.place(lane)
        attending.append(lane, lane.length - 1)
    rows = [(lane, lane.length - 1) for lane in lanes]
    alone = attending.compute(rows)
    for name in ("query", "gate", "key", "value"):
        kept = getattr(lanes[1], name).copy()
        getattr(lanes[1], name)[70] = np.nan
        found = attending.compute(rows)
        assert_same_bits(found[[0, 2]], alone[[0, 2]])
        if name in ("query", "gate"):
            assert np.isnan(found[1]).all(), f"a {name} that is not a number is lost"
        getattr(lanes[1], name)[:] = kept
    # The bad row's slot is written again by a good one.
    assert_same_bits(attending.compute(rows), alone)


@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize("opcodes", [(APPEND, ATTEND, MERGE), (APPEND, ATTEND_CHUNK)], ids=["round", "chunk"])
def test_bad_column_hurts_none_before_it(opcodes: tuple[int, ...], kv_format: str) -> None:
    """Its key and value stand in the page that they all read."""
    config = attention_config(4, 2, 64)
    attending, lane = Attending(config, kv_format), Lane(config, 80, 1)
    attending.place(lane)
    attending.append(lane, 66)
    rows = [(lane, position) for position in range(66, 80)]
    good = attending.compute(rows, opcodes)
    for name in ("key", "value"):
        kept = getattr(lane, name).copy()
        getattr(lane, name)[71] = np.nan
        found = attending.compute(rows, opcodes)
        assert_same_bits(found[:5], good[:5], name)
        if kv_format in ("float32", "bf16"):
            assert np.isnan(found[5:]).all(), f"a {name} that is not a number is lost"
        getattr(lane, name)[:] = kept


def test_append_writes_its_own_slots_and_nothing_else() -> None:
    config = attention_config(4, 2, 64)
    attending, lane = Attending(config, "float32", pages=6), Lane(config, 130, 1)
    attending.place(lane)
    attending.compute([(lane, position) for position in (0, 63, 64, 129)], (APPEND,))
    written = {
        (int(page), int(slot)) for page, slot in np.argwhere(~np.isnan(attending.layer.keys[:, 0, :, 0]))
    }
    first, second, third = (int(page) for page in lane.pages)
    assert written == {(first, 0), (first, 63), (second, 0), (third, 1)}
