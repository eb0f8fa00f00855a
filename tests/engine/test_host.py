"""The engine process: events cross, failures stay small, and its end is everybody's."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ninfer.engine.events import Delta, Failed, Finished, Progress, Started
from ninfer.engine.host import EngineProcess
from ninfer.engine.settings import EngineSettings
from ninfer.errors import EngineError
from tests.engine.requests import Recorder, generation

SLOW = {"steps": [{"text": "x", "wait_s": 0.02}], "repeat": 10_000}
FATALS: list[str] = []
CLOSE_S = 4.5  # after 5 s a host kills its process

Start = Callable[..., EngineProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts engine processes that play a script; all are closed at the end."""
    hosts = []

    def start(plays: dict[str, Any] | None = None, *, wait: bool = True, **script: Any) -> EngineProcess:
        path = tmp_path / f"script-{len(hosts)}.json"
        path.write_text(json.dumps({"plays": plays or {}, **script}))
        settings = EngineSettings("scripted", "", 8192, script=str(path))
        hosts.append(EngineProcess(settings, on_fatal=FATALS.append))
        if wait:
            hosts[-1].wait_ready(30)
        return hosts[-1]

    yield start
    for host in hosts:
        host.close()


def submit(host: EngineProcess, request_id: str, seed: int = 0) -> Recorder:
    recorder = Recorder()
    host.submit(generation(request_id, seed=seed, max_tokens=10**6), recorder)
    return recorder


def code(recorder: Recorder) -> str:
    end = recorder.end()
    assert isinstance(end, Failed), end
    return end.code


def running(recorder: Recorder) -> Recorder:
    recorder.wait_for(lambda events: any(isinstance(event, Delta) for event in events))
    return recorder


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def test_events_cross_the_border_in_order(start: Start) -> None:
    host = start({"1": {"steps": [{"progress": 3}, {"text": "é"}, {"hex": "f09f"}, {"hex": "9880"}]}})
    assert host.wait_ready().engine == "scripted"
    assert host.available
    recorder = submit(host, "a", 1)
    recorder.end()
    assert [type(event) for event in recorder.events] == [Started, Progress, Delta, Delta, Finished]
    assert recorder.text == "é😀"


def test_failures_and_cancellations_leave_the_process_alone(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ninfer.engine")
    host = start({"1": {"steps": [{"fail": "assertion"}]}, "2": {"steps": [{"fail": "memory"}]}, "3": SLOW})
    assert code(submit(host, "a", 1)) == "internal_error"
    assert code(submit(host, "b", 2)) == "insufficient_memory"
    slow = running(submit(host, "c", 3))
    queued = submit(host, "d", 3)
    host.cancel("d")
    host.cancel("c")
    for recorder in (slow, queued):
        end = recorder.end()
        assert isinstance(end, Finished)
        assert end.reason == "cancelled"
    assert submit(host, "e").end().id == "e"
    assert host.available
    assert "worker recovering from a failed request" in caplog.text
    assert "AssertionError: a scripted failure" in caplog.text
    assert "worker out of memory" in caplog.text


@pytest.mark.parametrize("how", ["killed", "left"])
def test_its_death_ends_running_queued_and_later_requests(start: Start, how: str) -> None:
    host = start({"1": SLOW, "2": {"steps": [{"text": "x"}, {"wait_s": 0.2}, {"fail": "exit"}]}})
    first = running(submit(host, "a", 1 if how == "killed" else 2))
    queued = submit(host, "b", 1)
    if how == "killed":
        os.kill(host.pid, signal.SIGKILL)
    assert code(first) == "engine_unavailable"
    assert code(queued) == "engine_unavailable"
    assert code(submit(host, "late")) == "engine_unavailable"
    assert not host.available


def test_a_lost_device_is_told_before_the_end(start: Start) -> None:
    FATALS.clear()
    host = start({"1": {"steps": [{"text": "x"}, {"fail": "device"}]}})
    assert code(submit(host, "a", 1)) == "engine_unavailable"
    assert ["illegal memory access" in message for message in FATALS] == [True]


def test_a_crash_of_its_intake_ends_it_instead_of_leaving_everybody_waiting(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is planted in the child: Python imports ``sitecustomize`` before anything else."""
    planted = """
        from ninfer.engine.worker import SerialWorker

        submit = SerialWorker.submit

        def fail(worker, request):
            if request.sampling.seed == 7:
                raise MemoryError("planted")
            submit(worker, request)

        SerialWorker.submit = fail
    """
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(planted))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    host = start({"1": SLOW})
    running_one = running(submit(host, "a", 1))
    assert code(submit(host, "b", 7)) == "engine_unavailable"
    assert code(running_one) == "engine_unavailable"
    assert code(submit(host, "late")) == "engine_unavailable"
    assert not host.available
    assert "intake crash: MemoryError('planted')" in caplog.text
    assert "the engine process ended (exit status 1)" in caplog.text


def test_closing_ends_everything_with_service_unavailable(start: Start) -> None:
    host = start({"1": SLOW})
    first, queued = running(submit(host, "a", 1)), submit(host, "b", 1)
    began = time.monotonic()
    host.close()
    assert time.monotonic() - began < CLOSE_S  # it was not killed
    assert [code(first), code(queued), code(submit(host, "late"))] == ["service_unavailable"] * 3
    assert gone(host.pid)
    host.close()


def test_an_engine_that_cannot_load_says_why(start: Start) -> None:
    host = start(load_error="the file is cut", wait=False)
    with pytest.raises(EngineError, match="the file is cut"):
        host.wait_ready(30)
    assert not host.available
    assert code(submit(host, "a")) == "engine_unavailable"


def test_an_unknown_engine_cannot_load() -> None:
    host = EngineProcess(EngineSettings("no-such-engine", "", 64))
    with pytest.raises(EngineError, match="no-such-engine"):
        host.wait_ready(30)
    host.close()


def test_closing_while_it_loads_does_not_wait_for_the_load(start: Start) -> None:
    host = start(load_s=60, wait=False)
    began = time.monotonic()
    host.close()
    assert time.monotonic() - began < CLOSE_S
    assert gone(host.pid)


def test_the_terminals_signals_do_not_reach_it(start: Start) -> None:
    host = start()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(host.pid, number)
    assert isinstance(submit(host, "a").end(), Finished)


def test_it_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"default": SLOW}))
    program = (
        "import sys, time\n"
        "from ninfer.engine.host import EngineProcess\n"
        "from ninfer.engine.settings import EngineSettings\n"
        "from tests.engine.requests import generation\n"
        f"host = EngineProcess(EngineSettings('scripted', '', 64, script={str(script)!r}))\n"
        "host.wait_ready()\n"
        "host.submit(generation('a', max_tokens=10**6), lambda event: None)\n"
        "print(host.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(child)


def test_a_large_request_crosses(start: Start) -> None:
    host = start()
    recorder = Recorder()
    host.submit(generation("a", tokens=bytes(4_000_000), positions=bytes(12_000_000)), recorder)
    recorder.end()
    event = recorder.events[0]
    assert isinstance(event, Started)
    assert event.prompt_tokens == 1_000_000
