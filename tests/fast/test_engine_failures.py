"""The fast worker when units, rows and admissions fail: who is hurt, what is logged, when the engine ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ninfer.engine.events import Delta, Failed
from ninfer.engine.worker import DeviceLost
from ninfer.fast.engine import RECOVERIES, EngineEnded
from tests.fast.fake_program import (
    Bench,
    Call,
    answer,
    end,
    failure,
    finish,
    names,
    token_ids,
    whole_answer,
)

MEMORY_RECORD = "worker out of memory: no room - recovering"
CHECK_RECORD = "worker recovering from a failed request"


def fault_at(
    kind: str, number: int | None = None, error: Callable[[], Exception] = lambda: MemoryError("no room"),
    times: int = 1,
) -> Callable[[Call], None]:  # fmt: skip
    """Raise at the next ``times`` calls of this kind that involve this request."""
    left = [times]

    def fault(call: Call) -> None:
        if call.kind == kind and (number is None or number in call.numbers) and left[0]:
            left[0] -= 1
            raise error()

    return fault


@pytest.mark.clause_early("FAIL-001")
@pytest.mark.clause("FAIL-002")
def test_out_of_memory_in_a_prefill_fails_that_request_and_the_decode_goes_on() -> None:
    bench = Bench()
    bench.submit(1, max_tokens=20)
    for _ in range(3):
        bench.worker.step()
    bench.program.fault = fault_at("prefill", 2)
    bench.submit(2)
    bench.run()
    assert failure(bench.of(2)) == "insufficient_memory"
    assert token_ids(bench.of(1)) == whole_answer(1, 20)
    assert bench.records == [MEMORY_RECORD]


@pytest.mark.clause_early("FAIL-003", "FAIL-004")
def test_a_failed_check_fails_the_requests_of_its_unit_and_the_queue_goes_on() -> None:
    bench = Bench(lanes=2)
    for number in (1, 2):
        bench.submit(number, max_tokens=9)
    for number in (3, 4, 5):
        bench.submit(number)
    bench.program.fault = fault_at("round", 2, lambda: AssertionError("ours"))
    bench.run()
    for number in (1, 2):
        assert failure(bench.of(number)) == "internal_error"
        assert "ours" not in end(bench.of(number)).message  # type: ignore[union-attr]
    for number in (3, 4, 5):
        assert token_ids(bench.of(number)) == whole_answer(number, 4)
    (record,) = bench.records
    assert record.startswith(f"{CHECK_RECORD}\n")
    assert "AssertionError: ours" in record


@pytest.mark.parametrize("kind", ["open", "prefill", "first"])
def test_a_failure_before_the_first_token_is_one_requests_own(kind: str) -> None:
    bench = Bench(lanes=2)
    bench.program.fault = fault_at(kind)
    for number in (1, 2, 3):
        bench.submit(number)
    bench.run()
    assert failure(bench.of(1)) == "insufficient_memory"
    assert ("Started" in names(bench.of(1))) == (kind != "open")
    for number in (2, 3):
        assert token_ids(bench.of(number)) == whole_answer(number, 4)
    assert bench.records == [MEMORY_RECORD]


def test_a_row_that_is_no_number_fails_alone_and_is_logged() -> None:
    bench = Bench(lanes=3)
    for number in (1, 2, 3):
        bench.submit(number, max_tokens=9)
    for _ in range(5):
        bench.worker.step()
    bench.program.nan = lambda number: number == 2
    bench.run()
    assert failure(bench.of(2)) == "internal_error"
    for number in (1, 3):
        assert token_ids(bench.of(number)) == whole_answer(number, 9)
    assert [record.split("\n")[0] for record in bench.records] == [CHECK_RECORD]


def test_an_output_that_fails_hurts_its_own_row() -> None:
    bench = Bench(lanes=3)
    bench.program.answer = lambda number, index: (
        26 + 300 if (number, index) == (2, 4) else answer(number, index)
    )
    for number in (1, 2, 3):
        bench.submit(number, max_tokens=9)
    bench.run()
    assert failure(bench.of(2)) == "internal_error"
    for number in (1, 3):
        assert token_ids(bench.of(number)) == whole_answer(number, 9)


def test_text_that_was_drawn_comes_before_the_failure_of_its_own_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The third token is committed, then its accounts fail: it is published, and then the failure."""
    bench = Bench()
    account, calls = bench.worker._account, [0]
    committed = account.committed

    def fail(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] == 3:
            raise AssertionError("ours")
        committed(*arguments)

    monkeypatch.setattr(account, "committed", fail)
    bench.submit(1, max_tokens=9)
    bench.run()
    assert failure(bench.of(1)) == "internal_error"
    assert token_ids(bench.of(1)) == whole_answer(1, 3)


def test_text_held_for_a_stop_string_comes_before_a_failure() -> None:
    """The whole answer so far may be the beginning of a stop string: it is told when it can become none."""
    bench = Bench()
    text = "".join(chr(ord("a") + token) for token in whole_answer(1, 9))
    bench.submit(1, max_tokens=9, stops=(f"{text[:8]}!",))
    for _ in range(4):
        bench.worker.step()
    assert token_ids(bench.of(1)) == []
    bench.program.fault = fault_at("round", 1)
    bench.run()
    assert failure(bench.of(1)) == "insufficient_memory"
    (held,) = [event for event in bench.of(1) if isinstance(event, Delta)]
    assert held.text == text[: held.committed]
    assert list(held.token_ids) == whole_answer(1, held.committed) != []


def failing(bench: Bench, count: int, kind: str = "prefill") -> None:
    """``count`` units in a row fail."""
    bench.program.fault = fault_at(kind, None, times=count)
    for number in range(len(bench.events) + 1000, len(bench.events) + 1000 + count):
        bench.submit(number)
        bench.run()
        assert failure(bench.of(number)) == "insufficient_memory"


@pytest.mark.clause_early("FAIL-005")
@pytest.mark.parametrize("kind", ["open", "prefill", "first"])
def test_eight_recoveries_in_a_row_are_survived_and_the_ninth_failure_ends_the_engine(kind: str) -> None:
    assert RECOVERIES == 8
    bench = Bench()
    failing(bench, 8, kind)
    bench.program.fault = fault_at(kind)
    bench.submit(1)
    with pytest.raises(EngineEnded, match="9 units failed in a row"):
        bench.run()
    assert failure(bench.of(1)) == "insufficient_memory"
    assert bench.records == [MEMORY_RECORD] * 9


@pytest.mark.clause_early("FAIL-006")
def test_a_successful_unit_resets_the_count() -> None:
    bench = Bench()
    for number in (1, 2, 3):
        failing(bench, 8)
        bench.submit(number, prompt=10, max_tokens=0)
        bench.run()
        assert finish(bench.of(number)).reason == "length"


def test_rows_that_commit_make_a_round_successful() -> None:
    bench = Bench(lanes=2)
    bench.program.nan = lambda number: number != 1
    bench.submit(1, max_tokens=100)
    for number in range(2, 40):
        bench.submit(number, max_tokens=3)
    bench.run()
    assert token_ids(bench.of(1)) == whole_answer(1, 100)
    assert all(failure(bench.of(number)) == "internal_error" for number in range(2, 40))


def test_a_model_that_returns_no_numbers_ends_the_engine() -> None:
    bench = Bench(lanes=1)
    bench.program.nan = lambda number: True
    for number in range(1, 20):
        bench.submit(number)
    with pytest.raises(EngineEnded):
        bench.run()
    assert len([event for event in bench.events if isinstance(event, Failed)]) == 9


def test_a_requests_own_errors_are_no_recoveries() -> None:
    bench = Bench()
    for number in range(1, 30):
        bench.submit(number, prompt=0)
    bench.run()
    assert bench.records == []


def test_a_lost_device_is_not_contained() -> None:
    bench = Bench()
    bench.program.fault = fault_at(
        "round", None, lambda: RuntimeError("CUDA error: an illegal memory access")
    )
    bench.submit(1)
    with pytest.raises(DeviceLost, match="illegal memory"):
        bench.run()


def test_a_leak_at_idle_ends_the_engine() -> None:
    bench = Bench()
    bench.submit(1)
    bench.program.pages.allocate(1)
    with pytest.raises(AssertionError, match="page leaked"):
        bench.run()


@pytest.mark.parametrize("seed", [0, 1])
def test_five_hundred_requests_with_cancellations_and_faults_leak_nothing(seed: int) -> None:
    """Every answer is right (whole, or a prefix where it was cancelled) or the contract's error."""
    random = np.random.default_rng(seed)
    bench = Bench(queue_limit_s=3.0, lanes=4, pages=40)
    poisoned = {int(number) for number in random.choice(np.arange(1, 501), 20, replace=False)}
    bench.program.nan = lambda number: number in poisoned
    errors = (MemoryError("no room"), AssertionError("ours"), ValueError("ours"))

    def fault(call: Call) -> None:
        if call.kind != "close" and random.random() < 0.01:
            raise errors[int(random.integers(len(errors)))]

    bench.program.fault = fault
    lengths = {}
    for number in range(1, 501):
        lengths[number] = int(random.integers(0, 60))
        bench.submit(number, int(random.integers(1, 400)), lengths[number])
        for _ in range(int(random.integers(0, 12))):
            bench.clock.now += 0.1
            bench.worker.step()
        if random.random() < 0.3:
            bench.worker.cancel(str(max(1, number - int(random.integers(0, 30)))))
    while not bench.worker.idle:
        bench.clock.now += 0.1
        bench.worker.step()
    bench.program.check_integrity()
    outcomes = {"length": 0, "cancelled": 0, "insufficient_memory": 0, "internal_error": 0}
    outcomes["request_queue_timeout"] = 0
    for number, length in lengths.items():
        events = bench.of(number)
        last, produced = end(events), token_ids(events)
        assert names(events).count("Started") <= 1
        assert not produced or names(events)[0] == "Started"
        assert produced == whole_answer(number, len(produced))
        if isinstance(last, Failed):
            outcomes[last.code] += 1
            continue
        outcomes[last.reason] += 1
        assert last.usage.completion_tokens == len(produced)
        assert len(produced) == length or last.reason == "cancelled"
    print(f"seed={seed} {outcomes}")
    assert all(outcomes.values()), outcomes
    assert sum(outcomes.values()) == 500
