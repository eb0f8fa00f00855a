"""What the fast worker reports of itself: counters, gauges, when snapshots come, and each request's part."""

from __future__ import annotations

import pytest

from ninfer.engine.events import Finished
from ninfer.engine.statistics import EngineStatistics
from tests.fast.fake_program import Bench, answer, failure, finish


def snapshots(bench: Bench) -> list[EngineStatistics]:
    return [event for event in bench.events if isinstance(event, EngineStatistics)]


def last(bench: Bench) -> EngineStatistics:
    return snapshots(bench)[-1]


def test_counters_are_the_sums_of_what_requests_used() -> None:
    bench = Bench(lanes=2, chunk=64)
    for number, prompt, tokens in ((1, 130, 5), (2, 64, 1), (3, 3, 9), (4, 70, 0)):
        bench.submit(number, prompt, tokens)
    bench.submit(5, prompt=10, stop_token_ids=(answer(5, 2),), max_tokens=9)
    bench.run()
    usages = [finish(bench.of(number)).usage for number in (1, 2, 3, 4, 5)]
    tokens = last(bench).tokens
    assert tokens.prompt == tokens.prefill == sum(usage.prompt_tokens for usage in usages) == 277
    assert tokens.generation == sum(usage.completion_tokens for usage in usages) == 18
    assert tokens.decode == 18 - 4
    assert (tokens.cached, tokens.replayed) == (0, 0)
    assert last(bench).decode_rounds == len(bench.program.rounds())
    assert last(bench).decode_row_rounds == sum(map(len, bench.program.rounds())) == 14
    assert last(bench).prefill_units == 3 + 1 + 1 + 2 + 1


def test_a_snapshot_with_everything_precedes_each_end() -> None:
    """Whoever reads the counters after an answer finds that answer in them."""
    bench = Bench(lanes=2)
    for number in range(4):
        bench.submit(number, max_tokens=3 + number)
    bench.run()
    generated = 0
    for index, event in enumerate(bench.events):
        if isinstance(event, Finished):
            generated += event.usage.completion_tokens
            before = bench.events[index - 1]
            assert isinstance(before, EngineStatistics)
            assert before.tokens.generation >= generated


def test_gauges_count_by_state_and_are_zero_at_idle() -> None:
    bench = Bench(lanes=2, chunk=64)
    bench.submit(1, prompt=3, max_tokens=50)
    bench.submit(2, prompt=640, max_tokens=50)
    bench.submit(3)
    for _ in range(3):
        bench.worker.step()
    bench.clock.now += 1
    bench.worker.step()
    gauges, occupancy = last(bench).scheduler, last(bench).occupancy
    assert (gauges.running, gauges.prefilling, gauges.decode_ready, gauges.waiting) == (2, 1, 1, 1)
    assert (occupancy.kv_used_pages, occupancy.kv_capacity_pages) == (1 + 3, 64)
    assert (occupancy.state_used_slots, occupancy.state_capacity_slots) == (2, 2)
    bench.run()
    gauges, occupancy = last(bench).scheduler, last(bench).occupancy
    assert (gauges.running, gauges.prefilling, gauges.decode_ready, gauges.waiting) == (0, 0, 0, 0)
    assert (occupancy.kv_used_pages, occupancy.state_used_slots) == (0, 0)


def test_snapshots_are_few_while_the_worker_is_busy() -> None:
    bench = Bench()
    bench.submit(1, max_tokens=500)
    for _ in range(400):
        bench.clock.now += 0.01
        bench.worker.step()
    assert 14 <= len(snapshots(bench)) <= 17  # four seconds


def test_failures_survived_are_counted_and_their_tokens_too() -> None:
    bench = Bench()
    bench.submit(1, max_tokens=9)
    bench.program.nan = lambda number: number == 1 and len(bench.program.rounds()) == 3
    bench.run()
    assert failure(bench.of(1)) == "internal_error"
    assert last(bench).recovery.failures == 1
    assert last(bench).tokens.generation == 3


@pytest.mark.clause_early("JLOG-070")
def test_a_request_knows_its_units() -> None:
    bench = Bench(chunk=1024, max_context=4096)
    bench.submit(1, prompt=2048, max_tokens=9)
    bench.run()
    work = finish(bench.of(1)).work
    assert work is not None
    assert (work.prefill_units, work.decode_rounds, work.computed_prefill_tokens) == (2, 8, 2048)


def test_a_request_that_never_started_saw_nothing() -> None:
    bench = Bench(lanes=1)
    bench.submit(1, max_tokens=50)
    bench.submit(2)
    bench.worker.step()
    bench.worker.cancel("2")
    bench.run()
    assert finish(bench.of(2)).work is None
    assert last(bench).tokens.prompt == 3


@pytest.mark.clause_early("JLOG-073")
def test_first_output_is_frozen_at_the_first_text() -> None:
    bench = Bench()
    bench.submit(1, max_tokens=0)
    bench.submit(2, max_tokens=4)
    while not bench.worker.idle:
        bench.clock.now += 1
        bench.worker.step()
    works = [finish(bench.of(number)).work for number in (1, 2)]
    assert works[0] is not None
    assert works[0].first_output is None
    assert works[1] is not None
    assert works[1].first_output is not None
    first = works[1].first_output  # bound in the first cycle, its prompt taken in in the second
    assert (first.elapsed_s, first.queue_s) == (2, 1)
