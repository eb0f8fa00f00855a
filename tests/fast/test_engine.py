"""The fast worker over a program that computes nothing: order of events, ends, cancellation, its thread."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

from ninfer.engine.events import Delta, EngineEvent, Failed, Finished, Progress, Started
from ninfer.fast.engine import FastWorker
from tests.fast.fake_program import (
    Bench,
    Call,
    FakeProgram,
    answer,
    end,
    failure,
    finish,
    generation,
    names,
    token_ids,
    whole_answer,
)

# --- one request ---------------------------------------------------------------------------------------


def test_events_come_in_order() -> None:
    bench = Bench()
    bench.submit(3, prompt=130, max_tokens=5)
    bench.run()
    events = bench.of(3)
    assert names(events) == ["Started", *["Progress"] * 3, *["Delta"] * 5, "Finished"]
    assert [event.processed for event in events if isinstance(event, Progress)] == [64, 128, 130]
    assert token_ids(events) == whole_answer(3, 5)
    last = finish(events)
    assert last.reason == "length"
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (130, 5)
    assert [call.tokens for call in bench.program.calls if call.kind == "prefill"] == [64, 64, 2]


def test_times_are_measured_from_submission() -> None:
    bench = Bench(lanes=1)
    bench.submit(1, max_tokens=3)
    bench.clock.now += 2
    bench.submit(2, max_tokens=3)
    while not bench.worker.idle:
        bench.clock.now += 1
        bench.worker.step()
    started = bench.of(2)[0]
    assert isinstance(started, Started)
    usage = finish(bench.of(2)).usage
    assert started.queue_s > 2
    assert usage.time_to_first_token_s == started.queue_s + usage.prefill_s
    assert usage.decode_s == 2


def test_a_stop_token_ends_the_answer_unpublished() -> None:
    bench = Bench()
    stop = answer(5, 2)
    bench.submit(5, max_tokens=9, stop_token_ids=(stop,))
    bench.run()
    assert token_ids(bench.of(5)) == whole_answer(5, 2)
    last = finish(bench.of(5))
    assert (last.reason, last.usage.completion_tokens) == ("stop", 3)


def test_a_stop_string_ends_the_answer() -> None:
    bench = Bench()
    text = "".join(chr(ord("a") + token) for token in whole_answer(5, 9))
    bench.submit(5, max_tokens=9, stops=(text[3:5],))
    bench.run()
    last = finish(bench.of(5))
    assert (last.reason, last.stop_string, last.usage.completion_tokens) == ("stop", text[3:5], 5)
    assert "".join(e.text for e in bench.of(5) if isinstance(e, Delta)) == text[:3]


def test_no_output_asked_for_processes_the_prompt_only() -> None:
    bench = Bench()
    bench.submit(1, prompt=70, max_tokens=0)
    bench.run()
    assert names(bench.of(1)) == ["Started", "Progress", "Progress", "Finished"]
    last = finish(bench.of(1))
    assert (last.reason, last.usage.prompt_tokens, last.usage.completion_tokens) == ("length", 70, 0)
    assert not [call for call in bench.program.calls if call.kind in ("first", "round")]


@pytest.mark.parametrize(("prompt", "produced"), [(60, 4), (63, 1), (64, 0)])
def test_the_context_ends_an_answer(prompt: int, produced: int) -> None:
    bench = Bench(max_context=64, pages=1)
    bench.submit(1, prompt=prompt, max_tokens=50)
    bench.run()
    last = finish(bench.of(1))
    assert (last.reason, last.usage.completion_tokens) == ("length", produced)


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"prompt": 0}, "invalid_prompt"),
        ({"prompt": 1025}, "context_length_exceeded"),
        ({"tokens": np.array([1, -1], "<i4").tobytes()}, "invalid_prompt"),
        ({"tokens": np.array([1 << 20], "<i4").tobytes()}, "invalid_prompt"),
        ({"positions": np.zeros((3, 2), "<i4").tobytes()}, "invalid_prompt"),
        ({"tokens": b"\0\0\0"}, "internal_error"),
        ({"stops": ("",)}, "internal_error"),
    ],
)
def test_a_bad_request_hurts_only_itself(members: dict[str, object], code: str) -> None:
    bench = Bench()
    bench.submit(1)
    bench.submit(2, **members)  # type: ignore[arg-type]
    bench.submit(3)
    bench.run()
    assert failure(bench.of(2)) == code
    assert names(bench.of(2)) == ["Failed"]
    for number in (1, 3):
        assert token_ids(bench.of(number)) == whole_answer(number, 4)
    assert (bench.records != []) == (code == "internal_error")


def test_a_request_larger_than_the_pool_is_refused_at_once() -> None:
    bench = Bench(pages=4)
    bench.submit(1, prompt=200, max_tokens=57)
    bench.submit(2, prompt=200, max_tokens=56)
    bench.run()
    last = end(bench.of(1))
    assert isinstance(last, Failed)
    assert last.code == "insufficient_memory"
    assert "5 KV pages" in last.message
    assert "--kv-capacity" in last.message
    assert token_ids(bench.of(2)) == whole_answer(2, 56)


# --- several -------------------------------------------------------------------------------------------


@pytest.mark.clause("EXEC-002")
def test_a_request_contributes_no_row_before_its_own_prefill_ended() -> None:
    bench = Bench(lanes=3)
    bench.submit(1, max_tokens=40)
    bench.worker.step()
    bench.submit(2, prompt=300, max_tokens=5)
    bench.submit(3, prompt=100, max_tokens=5)
    bench.run()
    calls = bench.program.calls
    for number in (2, 3):
        first = calls.index(Call("first", (number,)))
        assert all(number not in call.numbers for call in calls[:first] if call.kind == "round")
        assert any(call.kind == "round" and number in call.numbers for call in calls[first:])
    assert all(len(call.numbers) == 1 for call in calls if call.kind == "prefill")
    for number, length in ((1, 40), (2, 5), (3, 5)):
        assert token_ids(bench.of(number)) == whole_answer(number, length)


def test_running_streams_wait_for_one_chunk_at_most() -> None:
    bench = Bench(lanes=4, pages=200)
    bench.submit(1, max_tokens=200)
    bench.submit(2, max_tokens=200)
    for _ in range(3):
        bench.worker.step()
    bench.submit(3, prompt=1000)
    bench.submit(4, prompt=1000)
    bench.run()
    kinds = [call.kind for call in bench.program.calls if call.kind in ("prefill", "round")]
    after = kinds[kinds.index("round") :]
    assert after.count("prefill") > 20
    assert all(pair != ("prefill", "prefill") for pair in itertools.pairwise(after))


def test_a_short_request_starts_before_a_long_prefill_ends() -> None:
    bench = Bench()
    bench.submit(1, prompt=1000)
    bench.worker.step()
    bench.submit(2, prompt=10)
    bench.run()
    calls = bench.program.calls
    assert calls.index(Call("first", (2,))) < calls.index(Call("first", (1,)))


@pytest.mark.clause("EXEC-003")
def test_the_next_batch_has_no_row_of_a_request_that_ended() -> None:
    bench = Bench(lanes=3)
    for number, length in ((1, 9), (2, 5), (3, 9)):
        bench.submit(number, max_tokens=length)
    bench.run()
    sizes = [len(batch) for batch in bench.program.rounds()]
    assert 3 in sizes
    assert sizes[sizes.index(3) :] == sorted(sizes[sizes.index(3) :], reverse=True)
    last_of_two = max(i for i, batch in enumerate(bench.program.rounds()) if 2 in batch)
    assert bench.program.rounds()[last_of_two + 1] == (1, 3)


@pytest.mark.clause("SCHED-006")
def test_requests_start_in_order_and_a_large_one_is_overtaken_a_bounded_number_of_times() -> None:
    bench = Bench(lanes=1)
    for number in (1, 2, 3):
        bench.submit(number)
    bench.run()
    assert [event.id for event in bench.events if isinstance(event, Started)] == ["1", "2", "3"]

    bench = Bench(lanes=2, pages=8)
    bench.submit(1, max_tokens=100)
    bench.worker.step()
    bench.submit(2, prompt=500, max_tokens=12)
    for number in range(3, 40):
        bench.submit(number)
    bench.run()
    started = [int(event.id) for event in bench.events if isinstance(event, Started)]
    assert started.index(2) == 1 + 2
    assert started[:3] + started[4:] == [n for n in range(1, 40) if n != 2]


@pytest.mark.clause("SCHED-008")
def test_a_request_waits_when_the_pool_is_one_page_short() -> None:
    """The younger one waits for the older one's prompt, then gives way to its growth; nothing is lost."""
    bench = Bench(lanes=2, pages=4)
    bench.submit(1, prompt=70, max_tokens=92)
    bench.submit(2, prompt=70, max_tokens=58)
    bench.run()
    calls = bench.program.calls
    first = next(call for call in calls if call.numbers == (2,))
    assert Call("first", (1,)) in calls[: calls.index(first)], "the second waits for the first one's prompt"
    rounds = [call.numbers for call in calls if call.kind == "round"]
    assert (1, 2) in rounds
    alone = rounds[rounds.index((1, 2)) :]
    assert (1,) in alone, "the first has a page and the second none"
    for number, length in ((1, 92), (2, 58)):
        assert token_ids(bench.of(number)) == whole_answer(number, length)


@pytest.mark.clause_early("START-005")
def test_the_context_is_each_requests_own() -> None:
    bench = Bench(lanes=2, pages=32, max_context=1024)
    for number in (1, 2):
        bench.submit(number, prompt=1000, max_tokens=24)
    bench.run()
    for number in (1, 2):
        assert token_ids(bench.of(number)) == whole_answer(number, 24)
    assert (1, 2) in bench.program.rounds()


# --- cancellation and deadlines ------------------------------------------------------------------------


def test_cancelling_a_waiting_request_ends_it_without_starting_it() -> None:
    bench = Bench(lanes=1)
    bench.submit(1, max_tokens=20)
    bench.submit(2)
    bench.worker.step()
    bench.worker.cancel("2")
    bench.run()
    assert names(bench.of(2)) == ["Finished"]
    last = finish(bench.of(2))
    assert (last.reason, last.usage.prompt_tokens, last.usage.completion_tokens) == ("cancelled", 0, 0)
    assert token_ids(bench.of(1)) == whole_answer(1, 20)


def test_cancelling_during_prefill_stops_after_the_running_chunk() -> None:
    bench = Bench()
    bench.submit(1, prompt=500)
    bench.worker.step()
    bench.worker.cancel("1")
    bench.run()
    assert names(bench.of(1)) == ["Started", "Progress", "Finished"]
    assert finish(bench.of(1)).reason == "cancelled"


def test_cancelling_during_decode_keeps_what_was_committed() -> None:
    bench = Bench()
    bench.submit(1, max_tokens=50)
    bench.submit(2, max_tokens=9)
    for _ in range(5):
        bench.worker.step()
    bench.worker.cancel("1")
    bench.run()
    produced = token_ids(bench.of(1))
    assert 1 <= len(produced) < 50
    assert produced == whole_answer(1, 50)[: len(produced)]
    last = finish(bench.of(1))
    assert (last.reason, last.usage.completion_tokens) == ("cancelled", len(produced))
    assert token_ids(bench.of(2)) == whole_answer(2, 9)


def test_cancelling_publishes_what_the_output_held_back() -> None:
    bench = Bench()
    bench.submit(1, max_tokens=50, stops=("".join(chr(ord("a") + t) for t in whole_answer(1, 30)),))
    for _ in range(5):
        bench.worker.step()
    assert not token_ids(bench.of(1))
    bench.worker.cancel("1")
    bench.run()
    produced = token_ids(bench.of(1))
    assert produced == whole_answer(1, len(produced))
    assert finish(bench.of(1)).usage.completion_tokens == len(produced) > 0


def test_cancelling_twice_late_or_nobody_does_nothing() -> None:
    bench = Bench()
    bench.worker.cancel("nobody")
    bench.submit(1)
    bench.worker.cancel("1")
    bench.worker.cancel("1")
    bench.submit(2)
    bench.run()
    bench.worker.cancel("2")
    bench.run()
    assert finish(bench.of(1)).reason == "cancelled"
    assert token_ids(bench.of(2)) == whole_answer(2, 4)


@pytest.mark.clause_early("OPT-015")
def test_a_request_that_waits_too_long_fails_by_its_deadline() -> None:
    bench = Bench(queue_limit_s=0.5, lanes=1)
    bench.submit(1, max_tokens=30)
    bench.worker.step()
    bench.submit(2)
    bench.clock.now += 0.4
    bench.worker.step()
    assert bench.of(2) == []
    bench.clock.now += 0.2
    bench.worker.step()
    assert bench.of(2) == [Failed("2", "request_queue_timeout", "No lane became free within 500 ms.")]
    bench.clock.now += 5
    bench.run()
    assert token_ids(bench.of(1)) == whole_answer(1, 30)


def test_waiting_counts_from_the_call_not_from_the_next_unit_border() -> None:
    bench = Bench(queue_limit_s=0.5, lanes=1)
    bench.submit(1, max_tokens=30)
    bench.worker.step()
    bench.submit(2)
    bench.clock.now += 0.6  # one long unit
    bench.worker.step()
    assert failure(bench.of(2)) == "request_queue_timeout"


def test_preparation_counts_as_waiting() -> None:
    """A later request whose prompt took long to prepare may reach its deadline before an earlier one."""
    bench = Bench(queue_limit_s=0.5, lanes=1)
    bench.submit(1, max_tokens=30)
    bench.worker.step()
    bench.submit(2)
    bench.submit(3, waited_s=0.3)
    bench.clock.now += 0.3
    bench.worker.step()
    assert bench.of(2) == []
    assert failure(bench.of(3)) == "request_queue_timeout"
    bench.clock.now += 0.3
    bench.worker.step()
    assert failure(bench.of(2)) == "request_queue_timeout"


# --- its own thread ------------------------------------------------------------------------------------


def test_run_sleeps_until_work_comes_and_returns_after_stop() -> None:
    program, events, ended = FakeProgram(), list[EngineEvent](), threading.Semaphore(0)

    def publish(event: EngineEvent) -> None:
        events.append(event)
        if isinstance(event, Finished):
            ended.release()

    worker = FastWorker(program, lambda token: b"x", publish)  # type: ignore[arg-type]
    thread = threading.Thread(target=worker.run)
    thread.start()
    for number in range(1, 20):
        worker.submit(generation(number))
        if number % 3 == 0:
            assert ended.acquire(timeout=20)
    for _ in range(19 - 19 // 3):
        assert ended.acquire(timeout=20)
    worker.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert [event.id for event in events if isinstance(event, Started)] == [str(n) for n in range(1, 20)]


def test_stop_ends_a_busy_worker_at_the_next_border() -> None:
    program, seen = FakeProgram(max_context=1 << 20, pages=1 << 15), threading.Event()
    worker = FastWorker(program, lambda token: b"x", lambda event: seen.set())  # type: ignore[arg-type]
    worker.submit(generation(1, max_tokens=1 << 19))
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert seen.wait(20)
    worker.stop()
    thread.join(20)
    assert not thread.is_alive()
    worker.submit(generation(2))
