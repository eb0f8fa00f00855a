"""The serial worker: order, cancellation and failures, seen through the in-process host."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.events import Delta, Failed, Finished, Started
from ninfer.engine.inprocess import InProcessHost
from ninfer.engine.requests import GenerationRequest
from ninfer.errors import RequestError
from tests.engine.requests import GatedEngine, Recorder, generation


@pytest.fixture
def engine() -> GatedEngine:
    return GatedEngine()


@pytest.fixture
def host(engine: GatedEngine) -> Iterator[InProcessHost]:
    host = InProcessHost(engine)
    yield host
    host.close()


def submit(host: InProcessHost, *ids: str) -> list[Recorder]:
    recorders = [Recorder() for _ in ids]
    for request_id, recorder in zip(ids, recorders, strict=True):
        host.submit(generation(request_id), recorder)
    return recorders


def test_requests_are_served_one_by_one_in_order(host: InProcessHost, engine: GatedEngine) -> None:
    engine.gate.set()
    recorders = submit(host, "a", "b", "c")
    for request_id, recorder in zip("abc", recorders, strict=True):
        recorder.end()
        assert [type(event) for event in recorder.events] == [Started, Delta, Finished]
        assert recorder.text == request_id
    assert engine.served == ["a", "b", "c"]


def test_a_waiting_request_knows_how_long_it_waited(host: InProcessHost, engine: GatedEngine) -> None:
    first, second = submit(host, "a", "b")
    engine.started.wait()
    engine.gate.set()
    second.end()
    waits = [recorder.events[0].queue_s for recorder in (first, second)]  # type: ignore[union-attr]
    assert waits[1] > waits[0] >= 0


def test_cancelling_a_waiting_request_ends_it_without_serving_it(
    host: InProcessHost, engine: GatedEngine
) -> None:
    running, waiting, last = submit(host, "a", "b", "c")
    engine.started.wait()
    host.cancel("b")
    end = waiting.end()
    assert isinstance(end, Finished)
    assert (end.reason, end.usage.completion_tokens) == ("cancelled", 0)
    assert waiting.events == [end]
    engine.gate.set()
    last.end()
    assert engine.served == ["a", "c"]
    assert running.text == "a"


def test_cancelling_the_running_request_lets_the_next_one_run(
    host: InProcessHost, engine: GatedEngine
) -> None:
    running, after = submit(host, "a", "b")
    engine.started.wait()
    host.cancel("a")
    end = running.end()
    assert isinstance(end, Finished)
    assert end.reason == "cancelled"
    engine.gate.set()
    assert isinstance(after.end(), Finished)


def test_cancelling_an_unknown_request_does_nothing(host: InProcessHost, engine: GatedEngine) -> None:
    engine.gate.set()
    host.cancel("nobody")
    (recorder,) = submit(host, "a")
    assert isinstance(recorder.end(), Finished)


@pytest.mark.parametrize(
    ("error", "code", "record"),
    [
        (AssertionError("ours"), "internal_error", "worker recovering from a failed request"),
        (MemoryError(), "insufficient_memory", "worker out of memory"),
        (RequestError("constraint_dead_end", "m"), "constraint_dead_end", None),
    ],
)
def test_a_failure_ends_its_own_request_only(
    host: InProcessHost,
    engine: GatedEngine,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    code: str,
    record: str | None,
) -> None:
    caplog.set_level(logging.INFO, "ninfer.engine")
    engine.failures["b"] = error
    engine.gate.set()
    before, failing, after = submit(host, "a", "b", "c")
    end = failing.end()
    assert isinstance(end, Failed)
    assert end.code == code
    assert isinstance(before.end(), Finished)
    assert isinstance(after.end(), Finished)
    assert host.available
    heads = [r.message.split("\n")[0].split(":")[0] for r in caplog.records]
    assert heads == ([] if record is None else [f"engine | {record}"])


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 6))
def test_every_request_ends_once_and_in_order(cancellations: list[int], count: int) -> None:
    """Any cancellations of running, waiting, ended and unknown requests, while one runs."""
    engine = GatedEngine()
    host = InProcessHost(engine)
    ids = [str(index) for index in range(count)]
    recorders = submit(host, *ids)
    engine.started.wait()
    for index in cancellations:
        host.cancel(str(index))
    engine.gate.set()
    ends = [recorder.end() for recorder in recorders]
    host.close()
    assert [[type(event) for event in recorder.events].count(Finished) for recorder in recorders] == [
        1
    ] * count
    assert engine.served == sorted(engine.served)
    cancelled = {event.id for event in ends if isinstance(event, Finished) and event.reason == "cancelled"}
    asked = {str(index) for index in cancellations if index < count}
    assert asked - {"0"} <= cancelled <= asked
    assert set(engine.served) - {"0"} == set(ids) - asked - {"0"}


def test_a_lost_device_ends_every_request(host: InProcessHost, engine: GatedEngine) -> None:
    engine.failures["a"] = RuntimeError("CUDA error: an illegal memory access was encountered")
    engine.gate.set()
    running, waiting = submit(host, "a", "b")
    for recorder in (running, waiting, *submit(host, "late")):
        end = recorder.end()
        assert isinstance(end, Failed)
        assert end.code == "engine_unavailable"
    assert not host.available


def test_an_engine_that_forgets_the_end_fails_the_request() -> None:
    class Forgetful:
        name = "forgetful"

        def generate(self, request: GenerationRequest, *_: object) -> Iterator[Started]:
            yield Started(request.id, 3, 0, 0.0)

    host = InProcessHost(Forgetful())  # type: ignore[arg-type]
    (recorder,) = submit(host, "a")
    end = recorder.end()
    assert isinstance(end, Failed)
    assert end.code == "internal_error"
    host.close()


def test_closing_ends_running_and_waiting_requests(host: InProcessHost, engine: GatedEngine) -> None:
    recorders = submit(host, "a", "b")
    engine.started.wait()
    host.close()
    for recorder in (*recorders, *submit(host, "late")):
        end = recorder.end()
        assert isinstance(end, Failed)
        assert end.code == "service_unavailable"
    assert not host.available
    host.close()
