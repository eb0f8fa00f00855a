"""The worker's account: every second once, every token once, and what a resident request saw."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.account import INTERVAL_S, Account, Stage, Work
from ninfer.engine.statistics import EngineStatistics, Occupancy, SchedulerGauges


class Clock:
    """Time that a test moves; eighths of seconds add up exactly."""

    def __init__(self) -> None:
        self.now = 8.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, eighths: int) -> None:
        self.now += eighths / 8


def statistics(account: Account) -> EngineStatistics:
    return account.snapshot(SchedulerGauges(), Occupancy())


def round_of(account: Account, clock: Clock, submit: int, wait: int, post: int, work: Work) -> float:
    """A unit of these eighths; its duration."""
    account.enter(Stage.SUBMIT, work)
    clock.pass_(submit)
    launched = clock.now
    clock.pass_(wait)
    ended = clock.now
    clock.pass_(post)
    return account.launched(launched, ended)


SPANS = st.integers(0, 40)
SEGMENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(Stage), st.sampled_from(Work), SPANS),
        st.tuples(st.just("idle"), SPANS),
        st.tuples(st.just("unit"), st.sampled_from(Work), SPANS, SPANS, SPANS),
    )
)


@given(SEGMENTS)
def test_every_segment_is_counted_once(segments: list[tuple]) -> None:
    """By phase, by class, and nothing while the worker sleeps."""
    clock = Clock()
    account = Account(clock)
    busy, slept = 0, False
    for segment in segments:
        if segment[0] == "idle":
            account.idle()
            clock.pass_(segment[1])
            slept = True
        elif segment[0] == "unit":
            round_of(account, clock, *segment[2:], work=segment[1])
            busy += sum(segment[2:])
            slept = False
        else:
            account.enter(segment[0], segment[1])
            clock.pass_(segment[2])
            busy += segment[2]
            slept = False
        if slept:
            before = statistics(account).work
            clock.pass_(1)
            assert statistics(account).work.host == before.host
    work = statistics(account).work
    assert work.host.total + work.device_wait_s == busy / 8
    classes = work.classes
    by_class = [getattr(classes, name) for name in classes.__struct_fields__]
    assert sum(by_class) == busy / 8
    assert sum(by_class[1::2]) == work.device_wait_s


def test_a_unit_is_split_where_it_was_launched_and_ended() -> None:
    clock = Clock()
    account = Account(clock)
    assert round_of(account, clock, 1, 4, 2, Work.PREFILL) == 7 / 8
    work = statistics(account).work
    assert (work.host.program_submit, work.device_wait_s, work.host.program_post) == (1 / 8, 4 / 8, 2 / 8)
    assert (work.classes.prefill_host, work.classes.prefill_device_wait) == (3 / 8, 4 / 8)


def test_moments_of_another_clock_still_give_the_wait() -> None:
    clock = Clock()
    account = Account(clock)
    account.enter(Stage.SUBMIT, Work.DECODE)
    clock.pass_(8)
    assert account.launched(500.0, 500.5) == 1
    work = statistics(account).work
    assert (work.device_wait_s, work.host.total) == (0.5, 0.5)


@pytest.mark.clause("JLOG-071")
def test_a_batched_round_is_charged_in_full_to_each_request() -> None:
    """A hundred rounds of two: each request saw them whole, and both together twice the wall time."""
    clock = Clock()
    account = Account(clock)
    account.enter(Stage.BOUNDARY)
    both = [account.bound(clock.now, clock.now, 10) for _ in range(2)]
    began = clock.now
    for _ in range(100):
        account.decoded(both, round_of(account, clock, 1, 6, 1, Work.DECODE))
        for request in both:
            account.committed(request)
    wall = clock.now - began
    works = [account.settled(request) for request in both]
    for work in works:
        assert work.host.total + work.device_wait_s == wall
        assert (work.decode_host_s, work.decode_device_wait_s) == (25.0, 75.0)
        assert (work.decode_rounds, work.decode_s, work.decode_share_s) == (100, wall, wall / 2)
    seen = statistics(account)
    assert (seen.decode_rounds, seen.decode_row_rounds) == (100, 200)
    assert seen.work.host.total + seen.work.device_wait_s == wall


def test_tokens_are_counted_once() -> None:
    clock = Clock()
    account = Account(clock)
    account.enter(Stage.BOUNDARY)
    request = account.bound(clock.now, clock.now, 1000, 960)
    round_of(account, clock, 0, 8, 0, Work.PREFILL)
    account.prefilled(request, 40)
    account.committed(request)
    account.committed(request, 4)
    account.committed(request, 0)
    round_of(account, clock, 0, 8, 0, Work.PREFILL)
    account.replayed(request, 500)
    tokens = statistics(account).tokens
    assert (tokens.prompt, tokens.cached, tokens.prefill, tokens.replayed) == (1000, 960, 40, 500)
    assert (tokens.generation, tokens.decode) == (5, 4)
    work = account.settled(request)
    assert (work.computed_prefill_tokens, work.replayed_tokens, work.prefill_units) == (40, 500, 1)


@pytest.mark.clause("JLOG-074")
def test_first_output_splits_the_time_since_submission() -> None:
    """Queue to the binding that succeeded, then the binding itself; nothing was paused."""
    clock = Clock()
    account = Account(clock)
    account.enter(Stage.BOUNDARY)
    submitted_at = clock.now
    clock.pass_(16)
    binding_at = clock.now
    clock.pass_(4)
    request = account.bound(submitted_at, binding_at, 3)
    round_of(account, clock, 1, 2, 1, Work.PREFILL)
    account.prefilled(request, 3)
    account.outputting(request)
    clock.pass_(80)
    account.outputting(request)  # the second delta changes nothing
    first = account.settled(request).first_output
    assert first is not None
    assert (first.queue_s, first.binding_s, first.paused_s, first.elapsed_s) == (2.0, 0.5, 0.0, 3.0)
    assert first.host.total + first.device_wait_s == 0.5
    assert (first.prefill.submit_s, first.prefill.wait_s, first.prefill.post_s) == (1 / 8, 2 / 8, 1 / 8)
    assert first.replay.wait_s == 0
    assert first.computed_prefill_tokens == 3


def test_a_snapshot_is_due_a_few_times_a_second() -> None:
    clock = Clock()
    account = Account(clock)
    assert not account.due
    clock.now += INTERVAL_S
    assert account.due
    statistics(account)
    assert not account.due


def test_a_snapshots_own_cost_is_maintenance_of_the_next_one() -> None:
    clock = Clock()

    def ticking() -> float:
        clock.pass_(1)
        return clock.now

    account = Account(ticking)
    account.enter(Stage.BOUNDARY)
    statistics(account)
    second = statistics(account).work
    assert second.publications == 1
    assert 0 < second.publication_s <= second.host.engine_maintenance
