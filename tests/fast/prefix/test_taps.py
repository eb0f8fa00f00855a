"""Where a prompt leaves snapshots: the table by hand, and what holds for every plan."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.requests import CacheHints
from ninfer.engine.settings import CacheSettings
from ninfer.fast.prefix.limits import CacheLimits, describe, resolve_limits
from ninfer.fast.prefix.snapshots import Kind
from ninfer.fast.prefix.taps import Situation, Tap, TapSchedule, plan_taps

LIMITS = CacheLimits(True, 64, 64, tap_ladder=4096, tap_min_gap=1024, chunk=1024)
NONE = CacheHints()


def places(taps: tuple[Tap, ...], source: str) -> list[int]:
    return [tap.place for tap in taps if tap.source == source]


def cuts(taps: tuple[Tap, ...], length: int, chunk: int, base: int = 0) -> tuple[list[int], dict[int, Kind]]:
    """Ends of chunks, and the snapshots taken there."""
    schedule, frontier, ends, taken = TapSchedule(taps, length, chunk), base, list[int](), dict[int, Kind]()
    while frontier < length:
        frontier = schedule.end(frontier)
        ends.append(frontier)
        kind = schedule.due(frontier)
        if kind is not None:
            taken[frontier] = kind
    return ends, taken


@pytest.mark.clause("OPT-076")
def test_the_ladder_doubles_from_the_end() -> None:
    taps = plan_taps(Situation(40_000, 0), NONE, LIMITS)
    assert places(taps, "ladder") == [7232, 23616, 31808, 35904]
    assert places(taps, "tail") == [39_999]
    _, taken = cuts(taps, 40_000, 1024)
    assert sorted(taken) == [8192, 24576, 32768, 36864, 39936], "each at the chunk border that reaches it"


@pytest.mark.clause("OPT-077")
@pytest.mark.parametrize(
    ("chunk", "gap", "ladder"), [(256, 1024, 4096), (1024, 1024, 4096), (4096, 4096, 8192)]
)
def test_ladder_and_gap_follow_the_chunk(chunk: int, gap: int, ladder: int) -> None:
    limits = resolve_limits(CacheSettings(), lanes=2, chunk=chunk)
    assert (limits.tap_min_gap, limits.tap_ladder) == (gap, ladder)
    wide = resolve_limits(CacheSettings(tap_min_gap=8192, taps_per_request=64), 2, chunk)
    found = places(plan_taps(Situation(200_000, 0), NONE, wide), "ladder")
    assert len(found) > 2
    assert all(later - earlier >= 8192 for earlier, later in itertools.pairwise(found))


@pytest.mark.clause_early("START-013")
def test_sizes_follow_lanes_and_chunk() -> None:
    one, four = (resolve_limits(CacheSettings(), lanes, 1024) for lanes in (1, 4))
    assert (one.snapshot_slots, four.snapshot_slots) == (3, 6)
    assert "snapshot_slots=3 taps_per_request=2 tap_ladder=4096 tap_min_gap=1024" in describe(one)
    assert resolve_limits(CacheSettings(), 1, 1024, host_tier=True).snapshot_slots == 2
    assert describe(resolve_limits(CacheSettings(reuse=False), 1, 1024)) == "prefix_cache off"


def test_a_ladder_tap_goes_back_to_a_message_border() -> None:
    hints = CacheHints(messages=(34_000, 35_000, 35_890, 36_500))
    taps = plan_taps(Situation(40_000, 0), hints, LIMITS)
    assert 35_890 in places(taps, "ladder")


def test_boundaries_near_each_other_are_one() -> None:
    hints = CacheHints(automatic=5000, opener=5003, leading=800, messages=(5003,))
    taps = plan_taps(Situation(5010, 0), hints, LIMITS)
    assert [(tap.place, tap.source) for tap in taps if tap.exact] == [(800, "leading"), (5000, "opener")]
    assert {tap.kind for tap in taps if tap.exact} == {Kind.BOUNDARY}
    assert places(taps, "tail") == [], "just behind another snapshot"


def test_a_request_that_went_on_from_an_endpoint_does_not_tap_the_opener() -> None:
    hints = CacheHints(opener=5003)
    situation = Situation(5010, 4000)
    assert places(plan_taps(situation, hints, LIMITS), "opener") == [5003]
    assert places(plan_taps(replace(situation, from_endpoint=True), hints, LIMITS), "opener") == []


@pytest.mark.clause_early("HINT-007", "HINT-011")
def test_explicit_marks_are_taken_where_they_are_and_first() -> None:
    hints = CacheHints(explicit=(100, 130, 700, 4100), opener=4990, leading=90)
    taps = plan_taps(Situation(5000, 0), hints, replace(LIMITS, taps_per_request=4))
    assert places(taps, "explicit") == [100, 130, 700, 4100]
    assert all(tap.exact and tap.kind is Kind.BOUNDARY for tap in taps)
    two = plan_taps(Situation(5000, 0), hints, replace(LIMITS, taps_per_request=2))
    assert places(two, "explicit") == [700, 4100], "the latest ones, where there is no room for all"


def test_what_exists_is_not_taken_again() -> None:
    hints = CacheHints(explicit=(640, 1280), leading=1300)
    taps = plan_taps(Situation(5000, 640, frozenset({1280})), hints, LIMITS)
    assert all(tap.place not in (640, 1280, 1300) for tap in taps)


def test_a_place_inside_an_image_moves_to_its_start() -> None:
    hints = CacheHints(explicit=(1000,))
    situation = Situation(5000, 0, frontier=lambda place: 900 if 900 < place < 1100 else place)
    assert places(plan_taps(situation, hints, LIMITS), "explicit") == [900]


def test_exact_taps_split_the_chunk_and_the_next_one_ends_at_a_multiple_again() -> None:
    taps = plan_taps(Situation(3000, 0), CacheHints(explicit=(100, 1500)), LIMITS)
    ends, taken = cuts(taps, 3000, 1024)
    assert ends == [100, 1088, 1500, 2496, 3000]
    assert {place: kind for place, kind in taken.items() if place in (100, 1500)} == dict.fromkeys(
        (100, 1500), Kind.BOUNDARY
    )
    assert 2496 in taken, "the tail, at the start of the last chunk"


hints = st.builds(
    CacheHints,
    explicit=st.lists(st.integers(1, 30_000), max_size=4, unique=True).map(lambda p: tuple(sorted(p))),
    automatic=st.none() | st.integers(1, 30_000),
    opener=st.none() | st.integers(1, 30_000),
    leading=st.none() | st.integers(1, 30_000),
    messages=st.lists(st.integers(1, 30_000), max_size=9, unique=True).map(lambda p: tuple(sorted(p))),
)


@given(
    hints,
    st.integers(1, 30_000),
    st.floats(0, 1),
    st.frozensets(st.integers(1, 30_000), max_size=5),
    st.integers(0, 9),
    st.sampled_from([64, 256, 1024]),
)
def test_every_plan(
    hints: CacheHints, length: int, share: float, existing: frozenset[int], budget: int, chunk: int
) -> None:
    base = int(share * (length - 1))
    limits = replace(LIMITS, taps_per_request=budget, tap_ladder=512, tap_min_gap=200, chunk=chunk)
    taps = plan_taps(Situation(length, base, existing), hints, limits)
    assert taps == plan_taps(Situation(length, base, existing), hints, limits)
    assert len(taps) <= budget
    chosen = [tap.place for tap in taps]
    assert len(set(chosen)) == len(chosen)
    assert all(base < place < length for place in chosen)
    assert not existing & set(chosen)
    rungs = places(taps, "ladder")
    others = [*rungs, base, *existing]
    assert all(abs(rung - other) >= 200 for rung in rungs for other in others if other != rung)
    ends, taken = cuts(taps, length, chunk, base)
    assert ends[-1] == length
    assert all(0 < end - begin <= chunk for begin, end in zip([base, *ends], ends, strict=False))
    exact = {tap.place for tap in taps if tap.exact}
    assert exact <= set(ends)
    assert exact <= set(taken)
    assert all(base < place < length for place in taken)
    borders = [end for end in ends if end not in exact and end != length]
    assert all(border % 64 == 0 for border in borders)
