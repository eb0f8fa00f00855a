"""The worker with the prefix cache, over a program whose state is a checksum of what its lane has taken in.

The fake program compares, at every draw and block border, the lane's pages with its state: whatever is
shared, copied, restored, evicted or replayed wrongly ends the test.
"""

from __future__ import annotations

import numpy as np
import pytest

from ninfer.engine.events import Progress, SchedulingTransition, Started
from ninfer.engine.requests import CacheHints
from ninfer.engine.settings import CacheSettings
from ninfer.engine.statistics import EngineStatistics, HybridCache
from ninfer.fast.active import Active
from tests.fast.fake_program import Bench, Call, failure, finish, generation, names, token_ids, whole_answer

ON = CacheSettings(snapshot_slots=16, taps_per_request=8)


def statistics(bench: Bench) -> EngineStatistics:
    return [event for event in bench.events if isinstance(event, EngineStatistics)][-1]


def hybrid(bench: Bench) -> HybridCache:
    found = statistics(bench).cache.hybrid
    assert found is not None
    return found


def ask(bench: Bench, name: str, tokens: list[int], max_tokens: int = 4, **members: object) -> None:
    """Submit these prompt tokens; the first is the number that the fake program knows the request by."""
    request = generation(0, 1, max_tokens, id=name, tokens=np.array(tokens, "<i4").tobytes(), **members)
    bench.worker.submit(request)


def started(bench: Bench, name: str) -> Started:
    return next(event for event in bench.events if isinstance(event, Started) and event.id == name)


def text(number: int, length: int) -> list[int]:
    """A prompt of request ``number``."""
    return [number, *(int(token) for token in np.random.default_rng(number).integers(100, 1000, length - 1))]


# --- reuse ---------------------------------------------------------------------------------------------


@pytest.mark.clause("CACHE-009")
@pytest.mark.clause("SETTLE-007")
@pytest.mark.clause_early("TIMING-004")
@pytest.mark.parametrize("length", [129, 192, 193, 320])
def test_a_prompt_sent_again_leaves_at_least_one_token_to_compute(length: int) -> None:
    bench = Bench(cache=ON, pages=64)
    prompt = text(1, length)
    for name in ("a", "b"):
        ask(bench, name, prompt, 3)
        bench.run()
    assert started(bench, "a").cached_tokens == 0
    assert 64 <= started(bench, "b").cached_tokens <= length - 1
    last = [event for event in bench.of_name("b") if isinstance(event, Progress)][-1]
    assert (last.processed, last.total, last.cached) == (length, length, started(bench, "b").cached_tokens)
    usage = finish(bench.of_name("b")).usage
    assert usage.cached_tokens == started(bench, "b").cached_tokens
    assert token_ids(bench.of_name("b")) == whole_answer(1, 3)


def test_a_follow_up_resumes_at_the_end_of_the_answer() -> None:
    bench = Bench(cache=ON)
    prompt = text(1, 100)
    ask(bench, "a", prompt, 50)
    bench.run()
    # The last token of the answer was drawn, but never taken in.
    ask(bench, "b", [*prompt, *whole_answer(1, 50), 500, 501], 3)
    bench.run()
    assert started(bench, "b").cached_tokens == 149
    assert finish(bench.of_name("b")).usage.prefix_reuse_path == "hybrid_endpoint"
    assert [call.tokens for call in bench.program.calls if call.kind == "prefill"][-1] == 3
    assert hybrid(bench).endpoints_created == 1


def test_a_new_prompt_is_kept_soon_whatever_was_asked_often_before() -> None:
    """Two prompts of many hits, then one that comes again and again, with answers longer than itself."""
    bench, hints = Bench(cache=CacheSettings(snapshot_slots=3)), CacheHints(opener=195)
    for number in (1, 2):
        for turn in range(25):
            ask(bench, f"{number}-{turn}", text(number, 200), 300, cache=hints)
            bench.run()
    for turn in range(8):
        ask(bench, f"3-{turn}", text(3, 200), 300, cache=hints)
        bench.run()
    cached = [started(bench, f"3-{turn}").cached_tokens for turn in range(8)]
    assert min(cached[4:]) == 195, cached


def test_another_token_at_the_start_shares_nothing() -> None:
    bench = Bench(cache=ON)
    first, second = text(1, 300), text(1, 300)
    second[10] += 1
    ask(bench, "a", first)
    bench.run()
    ask(bench, "b", second)
    bench.run()
    assert started(bench, "b").cached_tokens == 0
    assert finish(bench.of_name("b")).usage.prefix_reuse_path == "root"


@pytest.mark.clause_early("OPT-065")
def test_without_reuse_nothing_is_read_or_left() -> None:
    bench = Bench(cache=CacheSettings(reuse=False))
    for name in ("a", "b"):
        ask(bench, name, text(1, 300))
        bench.run()
    assert started(bench, "b").cached_tokens == 0
    assert statistics(bench).cache.hybrid is None
    assert statistics(bench).occupancy.kv_used_pages == 0
    bench.program.check_integrity()


@pytest.mark.clause_early("CAP-006")
def test_what_finished_requests_leave_counts_as_used() -> None:
    bench = Bench(cache=ON, pages=20)
    for number in range(1, 12):
        ask(bench, str(number), text(number, 300))
        bench.run()
        occupancy = statistics(bench).occupancy
        assert 0 < occupancy.kv_used_pages <= occupancy.kv_capacity_pages == 20
    assert occupancy.state_capacity_slots == 2 + 16
    assert 0 < occupancy.state_used_slots <= 16


@pytest.mark.clause_early("CACHE-011", "START-009")
def test_a_shared_beginning_lies_in_the_pool_once() -> None:
    bench = Bench(cache=CacheSettings(True, 16, 8, tap_ladder=128, tap_min_gap=1), pages=64, max_context=2048)
    shared = text(1, 640)
    ask(bench, "a", [*shared, *text(2, 70)])
    bench.run()
    blocks = hybrid(bench).device_blocks
    ask(bench, "b", [*shared, *text(3, 70)])
    bench.run()
    assert started(bench, "b").cached_tokens >= 576
    assert hybrid(bench).device_blocks <= blocks + 2


def test_a_cancelled_prefill_leaves_its_prefix() -> None:
    """Case B42 and "Aborted request's prefilled prefix is kept for the retry"."""
    bench = Bench(cache=ON)
    prompt = text(1, 900)
    ask(bench, "a", prompt)
    for _ in range(5):
        bench.worker.step()
    bench.worker.cancel("a")
    bench.run()
    taken_in = [event for event in bench.of_name("a") if isinstance(event, Progress)][-1].processed
    assert 0 < taken_in < 900
    ask(bench, "b", prompt)
    bench.run()
    assert started(bench, "b").cached_tokens == taken_in
    assert token_ids(bench.of_name("b")) == whole_answer(1, 4)


@pytest.mark.parametrize("when", ["queued", "prefill", "decode"])
def test_a_client_that_goes_away_holds_nothing(when: str) -> None:
    """Case B42: running is back to 0, a queued request is never prefilled, the next one is unaffected."""
    bench = Bench(cache=ON, lanes=1)
    if when == "queued":
        ask(bench, "busy", text(9, 70), 30)
    ask(bench, "a", text(1, 500), 100)
    for _ in range({"queued": 3, "prefill": 3, "decode": 20}[when]):
        bench.worker.step()
    bench.worker.cancel("a")
    bench.run()
    assert finish(bench.of_name("a")).reason == "cancelled"
    assert (when == "queued") == ("Started" not in names(bench.of_name("a")))
    assert statistics(bench).scheduler.running == 0
    ask(bench, "b", text(2, 200), 5)
    bench.run()
    assert token_ids(bench.of_name("b")) == whole_answer(2, 5)


def test_a_request_that_goes_wrong_leaves_nothing() -> None:
    bench = Bench(cache=ON)
    prompt = text(1, 300)
    bench.program.nan = lambda number: number == 1
    ask(bench, "a", prompt)
    bench.run()
    assert failure(bench.of_name("a")) == "internal_error"
    bench.program.nan = lambda number: False
    ask(bench, "b", prompt)
    bench.run()
    assert started(bench, "b").cached_tokens == 0
    assert token_ids(bench.of_name("b")) == whole_answer(1, 4)


# --- coalescing ----------------------------------------------------------------------------------------


def test_concurrent_prompts_compute_a_new_prefix_once() -> None:
    bench = Bench(cache=ON, lanes=4, pages=200, max_context=4096)
    shared = text(1, 2000)
    for index in range(4):
        ask(bench, str(index), [*shared, *text(10 + index, 60)], 3)
    bench.run()
    computed = sum(call.tokens for call in bench.program.calls if call.kind == "prefill")
    assert computed < 2060 + 3 * 200
    assert [started(bench, str(index)).cached_tokens for index in (1, 2, 3)] == [1984] * 3
    for index in range(4):
        assert token_ids(bench.of_name(str(index))) == whole_answer(1, 3)


def test_a_sibling_that_is_cancelled_lets_the_other_in() -> None:
    bench = Bench(cache=ON, lanes=2, pages=200, max_context=4096)
    shared = text(1, 2000)
    for name in ("a", "b"):
        ask(bench, name, [*shared, 5], 3)
    for _ in range(6):
        bench.worker.step()
    assert "Started" not in names(bench.of_name("b"))
    bench.worker.cancel("a")
    bench.run()
    assert 64 <= started(bench, "b").cached_tokens < 1984
    assert token_ids(bench.of_name("b")) == whole_answer(1, 3)


def test_pieces_of_a_chunk_that_taps_cut_run_in_one_turn() -> None:
    bench = Bench(cache=ON, lanes=3, pages=200, max_context=4096, chunk=256)
    ask(bench, "answer", text(1, 10), 200)
    ask(bench, "long", text(2, 2000))
    for _ in range(3):
        bench.worker.step()
    ask(bench, "cut", text(3, 250), cache=CacheHints(explicit=(100,), opener=240))
    bench.run()
    calls = [call for call in bench.program.calls if call.kind in ("prefill", "round")]
    begin = calls.index(Call("prefill", (3,), 100))
    assert [call.tokens for call in calls[begin : begin + 3]] == [100, 140, 10]
    assert [call.numbers for call in calls[begin - 2 : begin + 4]] == [(2,), (1,), (3,), (3,), (3,), (1, 3)]


# --- pressure ------------------------------------------------------------------------------------------


@pytest.mark.clause("SCHED-009")
@pytest.mark.clause("START-010")
def test_retained_prefixes_go_before_anybody_is_paused() -> None:
    bench = Bench(cache=ON, lanes=2, pages=12)
    for number in range(1, 6):
        ask(bench, str(number), text(number, 250))
        bench.run()
    before = hybrid(bench).evicted_blocks
    for number in (11, 12):
        ask(bench, str(number), text(number, 200), 60)
    bench.run()
    assert hybrid(bench).evicted_blocks > before
    assert statistics(bench).recovery.preemptions == 0
    residents, left = bench.worker._residents, list[int]()
    inner = residents.pause

    def pause(active: Active) -> None:
        left.append(residents.cache.available_pages)
        inner(active)

    residents.pause = pause  # type: ignore[method-assign]
    for number in (21, 22):
        ask(bench, str(number), text(number, 60), 500)
    bench.run()
    assert left, "two that grow must need more than there is"
    assert set(left) == {0}, "somebody was paused while a cached block was left"
    for number in (21, 22):
        assert token_ids(bench.of(number)) == whole_answer(number, 500)


@pytest.mark.clause("SCHED-010")
@pytest.mark.clause("CACHE-002")
@pytest.mark.parametrize("reuse", [True, False])
def test_a_younger_request_is_paused_for_an_older_one_and_loses_nothing(reuse: bool) -> None:
    options = ON if reuse else CacheSettings(reuse=False)
    bench = Bench(cache=options, lanes=2, pages=9)
    ask(bench, "old", text(1, 60), 400)
    ask(bench, "young", text(2, 60), 300)
    bench.run()
    assert statistics(bench).recovery.preemptions > 0
    assert statistics(bench).recovery.snapshot_restores == 0
    assert statistics(bench).recovery.replay_restores == statistics(bench).recovery.preemptions
    for name, number, length in (("old", 1, 400), ("young", 2, 300)):
        assert token_ids(bench.of_name(name)) == whole_answer(number, length)
        assert finish(bench.of_name(name)).usage.completion_tokens == length
        assert names(bench.of_name(name)).count("Started") == 1
    ends = [event.id for event in bench.events if type(event).__name__ == "Finished"]
    assert ends == ["old", "young"]
    steps = [e.transition for e in bench.of_name("young") if isinstance(e, SchedulingTransition)]
    assert steps[:6] == [
        "pause_started",
        "paused",
        "restore_started",
        "restored",
        "replay_complete",
        "recovery_complete",
    ]
    assert steps[-1] == "terminal"
    routes = {e.route for e in bench.of_name("young") if isinstance(e, SchedulingTransition)}
    assert routes <= {"replay", None}
    work = finish(bench.of_name("young")).work
    assert work is not None
    assert work.preemptions == statistics(bench).recovery.preemptions
    assert not [e for e in bench.of_name("old") if isinstance(e, SchedulingTransition)]


@pytest.mark.clause("SCHED-011")
def test_a_fresh_request_that_fits_goes_ahead_of_a_paused_one() -> None:
    bench = Bench(cache=ON, lanes=2, pages=9)
    ask(bench, "old", text(1, 60), 500)
    ask(bench, "young", text(2, 60), 300)
    while statistics_or_none(bench, "paused") == 0:
        bench.worker.step()
        bench.clock.now += 1
    ask(bench, "small", text(3, 10), 5)
    bench.run()
    ends = [event.id for event in bench.events if type(event).__name__ == "Finished"]
    assert ends.index("small") < ends.index("old") < ends.index("young")


def statistics_or_none(bench: Bench, gauge: str) -> int:
    found = [event for event in bench.events if isinstance(event, EngineStatistics)]
    return getattr(found[-1].scheduler, gauge) if found else 0


@pytest.mark.clause("SCHED-012")
def test_paused_requests_come_back_in_order_and_do_something_new_first() -> None:
    bench = Bench(cache=ON, lanes=4, pages=16)
    for number in (1, 2, 3, 4):
        ask(bench, str(number), text(number, 60), 500)
    bench.run()
    steps = [event for event in bench.events if isinstance(event, SchedulingTransition)]
    assert len({event.id for event in steps}) == 3
    paused: set[str] = set()
    for event in steps:
        if event.transition == "paused":
            paused.add(event.id)
        elif event.transition == "restored":
            assert event.id == min(paused), "the oldest paused request comes back first"
            paused.discard(event.id)
    for name in ("2", "3", "4"):
        own = [event.transition for event in steps if event.id == name]
        for index, step in enumerate(own):
            if step == "restored":
                assert own[index + 1 : index + 3] == ["replay_complete", "recovery_complete"]
    for number in (1, 2, 3, 4):
        assert token_ids(bench.of_name(str(number))) == whole_answer(number, 500)


@pytest.mark.clause("SCHED-005")
def test_a_pause_does_not_restart_the_admission_deadline() -> None:
    bench = Bench(cache=ON, queue_limit_s=0.5, lanes=2, pages=9)
    ask(bench, "old", text(1, 60), 400)
    ask(bench, "young", text(2, 60), 300)
    while not bench.worker.idle:
        bench.worker.step()
        bench.clock.now += 0.1
    assert statistics(bench).recovery.preemptions > 0
    assert token_ids(bench.of_name("young")) == whole_answer(2, 300)


def test_a_prompt_paused_midway_goes_on_where_it_was() -> None:
    bench = Bench(cache=ON, lanes=2, pages=12, max_context=768)
    ask(bench, "old", text(1, 60), 700)
    ask(bench, "young", text(2, 400), 20)
    bench.run()
    for name, number, length in (("old", 1, 700), ("young", 2, 20)):
        assert token_ids(bench.of_name(name)) == whole_answer(number, length)
    processed = [event.processed for event in bench.of_name("young") if isinstance(event, Progress)]
    assert processed == sorted(processed)


def test_the_oldest_is_never_paused_and_cancelling_a_paused_one_frees_it() -> None:
    bench = Bench(cache=ON, lanes=3, pages=12)
    for number in (1, 2, 3):
        ask(bench, str(number), text(number, 60), 600 if number == 1 else 400)
    while statistics_or_none(bench, "paused") == 0:
        bench.worker.step()
        bench.clock.now += 1
    paused = {e.id for e in bench.events if isinstance(e, SchedulingTransition) and e.transition == "paused"}
    assert paused == {"3"}
    bench.worker.cancel("3")
    bench.run()
    assert finish(bench.of_name("3")).reason == "cancelled"
    assert token_ids(bench.of_name("1")) == whole_answer(1, 600)
    steps = [event.transition for event in bench.of_name("3") if isinstance(event, SchedulingTransition)]
    assert steps[-1] == "terminal"
