"""The fast engine behind HTTP when units fail: whose answer fails, what is logged, when a restart is due."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Client
from ninfer.engine.events import Started
from ninfer.engine.host import EngineProcess
from ninfer.engine.settings import EngineSettings
from tests.fast.conftest import COLD_LIMIT_S, compiled  # noqa: F401  (kernels before any server)
from tests.server.conftest import MODEL
from tests.server.fast_client import Stream, error_of, eventually, said
from tests.server.fast_host import FastHost, serving_fast
from tests.server.inprocess import serving_host
from tests.server.processes import ROOT

pytestmark = pytest.mark.timeout(COLD_LIMIT_S)

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 4}
UNAVAILABLE = (503, b'{"status":"unavailable"}')


def failing(kind: str, times: int, error: Callable[[], Exception]) -> Callable[[str], None]:
    """A hook that fails the next units of this kind."""
    left = [times]

    def before(unit: str) -> None:
        if unit == kind and left[0]:
            left[0] -= 1
            raise error()

    return before


def no_memory() -> Exception:
    return MemoryError("no room")


def health(client: Client) -> tuple[int, bytes]:
    answer = client.get("/health")
    return answer.status, answer.body


def codes_of_failures(client: Client, host: FastHost, count: int) -> list[tuple[int, str]]:
    """``count`` requests one after another, each of which fails in its prefill."""
    host.program.before = failing("prefill", count, no_memory)
    answers = [client.chat(**GREEDY) for _ in range(count)]
    return [(answer.status, answer.error["code"]) for answer in answers]


@pytest.mark.clause("FAIL-001", "FAIL-002")
def test_out_of_memory_in_a_prefill_hurts_nobody_else(nano: Path) -> None:
    long = GREEDY | {"max_tokens": 300}
    with serving_fast(nano, ("--max-concurrency", "2")) as (client, host):
        with Stream(client, **long) as undisturbed:
            expected = said(undisturbed.payloads())
        with Stream(client, **long) as running:
            running.wait()
            host.program.going.clear()
            host.program.before = failing("prefill", 1, no_memory)
            failed = client.open_chat(**GREEDY)
            eventually(lambda: host.submitted == 3)
            host.program.going.set()
            assert error_of(failed) == (503, "insufficient_memory")
            assert said(running.payloads()) == expected
        assert host.records[-1:] == ["worker out of memory: no room - recovering"]
        assert client.chat(**GREEDY).status == 200


@pytest.mark.clause("FAIL-003", "FAIL-004")
def test_a_failed_check_is_logged_and_the_queue_goes_on(nano: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving_fast(nano) as (client, host):
        host.program.going.clear()
        host.program.before = failing("round", 1, lambda: AssertionError("ours"))
        first = client.open_chat(**GREEDY)
        eventually(lambda: host.count(Started) == 1)
        others = [Stream(client, **GREEDY) for _ in range(2)]
        eventually(lambda: host.submitted == 3)
        host.program.going.set()
        assert error_of(first) == (500, "internal_error")
        for other in others:
            with other:
                other.payloads()
        assert client.chat(**GREEDY).status == 200
    (record,) = [line for line in caplog.messages if "worker recovering from a failed request" in line]
    assert "AssertionError: ours" in record


@pytest.mark.clause("FAIL-005", "HEALTH-002", "FAIL-008")
def test_the_ninth_failure_in_a_row_ends_the_engine_until_a_restart(nano: Path) -> None:
    with serving_fast(nano) as (client, host):
        assert codes_of_failures(client, host, 8) == [(503, "insufficient_memory")] * 8
        assert health(client) == (200, b'{"status":"ok"}')
        assert codes_of_failures(client, host, 1) == [(503, "insufficient_memory")]
        eventually(lambda: not host.available)
        for _ in range(2):
            assert health(client) == UNAVAILABLE
            answer = client.chat(**GREEDY)
            assert (answer.status, answer.error["code"]) == (503, "engine_unavailable")
    with serving_fast(nano) as (client, _):
        assert client.chat(**GREEDY).status == 200


@pytest.mark.clause("FAIL-006")
def test_a_success_resets_the_count(nano: Path) -> None:
    with serving_fast(nano) as (client, host):
        for _ in range(2):
            codes_of_failures(client, host, 8)
            assert client.chat(**GREEDY).status == 200
        assert sum(record.startswith("worker out of memory") for record in host.records) == 16
        assert health(client) == (200, b'{"status":"ok"}')


@pytest.mark.clause("FAIL-007")
def test_the_end_of_the_engine_is_everybodys(nano: Path) -> None:
    """Nine fail themselves; at that moment one more is resident and three wait."""
    with serving_fast(nano, ("--max-concurrency", "2")) as (client, host):
        host.program.going.clear()
        host.program.before = failing("prefill", 9, no_memory)
        first = Stream(client, **GREEDY)
        eventually(lambda: host.count(Started) == 1)
        streams = [first, *(Stream(client, **GREEDY) for _ in range(12))]
        eventually(lambda: host.submitted == 13)
        host.program.going.set()
        codes = []
        for stream in streams:
            with stream:
                codes.append(stream.error()[1])
        assert sorted(codes) == ["engine_unavailable"] * 4 + ["insufficient_memory"] * 9
        assert host.count(Started) == 10
        assert health(client) == UNAVAILABLE


@pytest.fixture
def buggy_children(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Engine processes with the bug of ``fast_child.py``, until the function that this gives is called."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    popen = subprocess.Popen

    def start(command: list[str], **members: Any) -> subprocess.Popen[bytes]:
        swapped = {"ninfer.engine.child": "tests.server.fast_child"}
        return popen([swapped.get(part, part) for part in command], **members)

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", start)
        yield patch.undo


@pytest.mark.clause("FAIL-008", "FAIL-009", "HEALTH-002")
def test_any_other_exception_is_a_crash_of_the_worker(
    nano: Path, buggy_children: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """A real engine process, whose scheduler fails while one request runs and two wait."""
    settings = EngineSettings("fast", str(nano), 8192, threads=1)
    host, arguments = EngineProcess(settings), ("--port", "0", *MODEL)
    buggy_children()
    with serving_host(nano, host, arguments) as client:
        host.wait_ready(COLD_LIMIT_S)
        assert health(client) == (200, b'{"status":"ok"}')
        with Stream(client, temperature=0, max_tokens=8000, enable_thinking=False) as running:
            running.wait()
            waiting = [client.open_chat(**GREEDY) for _ in range(2)]
            assert [error_of(sock) for sock in waiting] == [(503, "engine_unavailable")] * 2
            assert running.error() == (200, "engine_unavailable")
        assert "engine | worker crash: KeyError('a lost ticket')" in caplog.messages
        for _ in range(2):
            assert health(client) == UNAVAILABLE
            assert client.chat(**GREEDY).status == 503
    host = EngineProcess(settings)
    with serving_host(nano, host, arguments) as client:
        host.wait_ready(COLD_LIMIT_S)
        assert client.chat(**GREEDY).status == 200
        assert health(client) == (200, b'{"status":"ok"}')
