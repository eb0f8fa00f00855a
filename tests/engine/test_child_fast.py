"""The fast engine in its own process: what its start tells, its answers, cancellation and death."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from ninfer.engine import child
from ninfer.engine.events import Delta, EngineEvent, Failed, Finished, Progress, Started
from ninfer.engine.host import EngineProcess
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.settings import EngineSettings
from ninfer.errors import ArtifactError, NinferError, OptionError
from tests.engine.requests import Recorder, generation
from tests.fast.conftest import COLD_LIMIT_S, compiled  # noqa: F401  (kernels before any process)
from tests.support.nano import nano_artifact

pytestmark = pytest.mark.timeout(COLD_LIMIT_S)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> EngineSettings:
    artifact = nano_artifact(tmp_path_factory.mktemp("nano"))
    return EngineSettings("fast", str(artifact), 1024, lanes=2, threads=1, prefill_chunk=64)


@pytest.fixture(scope="module")
def started(settings: EngineSettings) -> Iterator[tuple[EngineProcess, list[str]]]:
    """An engine process that is ready, and the lines it logged until then."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("ninfer.engine")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    host = EngineProcess(settings)
    try:
        assert host.wait_ready(COLD_LIMIT_S).engine == "fast"
        yield host, lines[:]
    finally:
        host.close()
        logger.removeHandler(handler)
        logger.setLevel(level)


def asking(name: str, prompt: int, max_tokens: int) -> GenerationRequest:
    tokens = (np.arange(prompt) * 7 % 400).astype("<i4").tobytes()
    return generation(name, tokens=tokens, max_tokens=max_tokens, ignore_stop_tokens=True)


def answers(host: EngineProcess, *requests: GenerationRequest) -> list[Recorder]:
    recorders = [Recorder() for _ in requests]
    for request, recorder in zip(requests, recorders, strict=True):
        host.submit(request, recorder)
    for recorder in recorders:
        recorder.end()
    return recorders


def token_ids(events: Sequence[EngineEvent]) -> list[int]:
    return [token for event in events if isinstance(event, Delta) for token in event.token_ids]


def test_the_start_says_what_memory_is_held(started: tuple[EngineProcess, list[str]]) -> None:
    (ledger,) = (line for line in started[1] if line.startswith("engine | memory_mib "))
    assert "weights=" in ledger
    assert ledger.endswith(" kv_capacity_tokens=8192 lanes=2")


def test_events_cross_and_are_those_of_a_worker_in_this_process(
    started: tuple[EngineProcess, list[str]], settings: EngineSettings
) -> None:
    requests = [asking("a", 130, 20), asking("b", 3, 40)]
    first, second = answers(started[0], *requests)
    kinds = [type(event) for event in first.events]
    assert kinds[:4] == [Started, Progress, Progress, Progress]
    assert set(kinds[4:-1]) == {Delta}
    assert isinstance(first.events[-1], Finished)
    assert first.events[-1].usage.completion_tokens == 20

    events: list[EngineEvent] = []
    worker = child.open_worker(settings, lambda loaded, total: None, events.append)
    for request in requests:
        worker.submit(request)
    while not worker.idle:  # type: ignore[attr-defined]
        worker.step()  # type: ignore[attr-defined]
    for name, recorder in (("a", first), ("b", second)):
        own = [event for event in events if isinstance(event, Delta) and event.id == name]
        assert token_ids(recorder.events) == token_ids(own) != []


def test_a_cancelled_request_ends_and_the_next_is_answered(
    started: tuple[EngineProcess, list[str]],
) -> None:
    host, _ = started
    recorder = Recorder()
    host.submit(asking("long", 10, 1000), recorder)
    recorder.wait_for(lambda events: any(isinstance(event, Delta) for event in events))
    host.cancel("long")
    end = recorder.end()
    assert isinstance(end, Finished)
    assert end.reason in ("cancelled", "length")  # a fast machine may have been faster
    (after,) = answers(host, asking("next", 3, 2))
    assert isinstance(after.events[-1], Finished)


def test_a_bad_prompt_fails_alone(started: tuple[EngineProcess, list[str]]) -> None:
    empty, outside, good = answers(
        started[0],
        generation("empty", tokens=b""),
        generation("outside", tokens=np.int32(1 << 20).tobytes()),
        asking("good", 3, 2),
    )
    for recorder in (empty, outside):
        (event,) = recorder.events
        assert isinstance(event, Failed)
        assert event.code == "invalid_prompt"
    assert isinstance(good.events[-1], Finished)


def test_its_death_is_told(started: tuple[EngineProcess, list[str]]) -> None:
    """The last test of this process: everything afterwards fails."""
    host, _ = started
    recorder = Recorder()
    host.submit(asking("dying", 10, 1000), recorder)
    os.kill(host.pid, signal.SIGKILL)
    end = recorder.end()
    assert isinstance(end, Failed)
    assert end.code == "engine_unavailable"
    (late,) = answers(host, asking("late", 3, 2))
    assert [event.code for event in late.events if isinstance(event, Failed)] == ["engine_unavailable"]
    assert not host.available


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"kv_capacity": 64}, OptionError, "--kv-capacity: 64 tokens cannot hold one request"),
        ({"artifact": "/nowhere/x.ninfer"}, ArtifactError, "/nowhere/x.ninfer"),
    ],
)
def test_a_start_that_cannot_be_names_its_reason(
    settings: EngineSettings, changes: dict[str, object], kind: type[NinferError], text: str
) -> None:
    chosen = EngineSettings(
        **({name: getattr(settings, name) for name in settings.__struct_fields__} | changes)
    )
    with pytest.raises(kind, match=text):
        child.open_worker(chosen, lambda loaded, total: None, lambda event: None)


def test_a_file_that_is_no_artifact_stops_the_process_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "broken.ninfer"
    path.write_bytes(b"x" * 5000)
    host = EngineProcess(EngineSettings("fast", str(path), 1024, threads=1))
    try:
        with pytest.raises(NinferError, match=r"\S"):
            host.wait_ready(COLD_LIMIT_S)
        assert not host.available
    finally:
        host.close()
