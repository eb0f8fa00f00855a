"""Memory, logs and vanished clients: what a server must withstand, in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Answer, Client, chat_body, read_all, read_until
from ninfer.engine.scripted import Play, Script, Step
from ninfer.spec.options import option_table
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.inprocess import serving
from tests.server.processes import ROOT, ServerProcess

MIB = 2**20


def scripted(directory: Path, script: dict[str, Any]) -> dict[str, str]:
    """Engine settings of a script."""
    path = directory / "script.json"
    path.write_text(json.dumps(script))
    return {"engine": "scripted", "script": str(path)}


def resident_bytes(pid: int, row: str = "VmHWM") -> int:
    """Resident memory of a process; VmHWM is the most it ever was."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith(row))
    return 1024 * int(line.split()[1])


@pytest.mark.clause("CAP-015")
def test_requests_and_their_limit_bound_the_memory_of_bodies(nano: Path, tmp_path: Path) -> None:
    """Three slots, ten bodies of 4 MiB: three are processed, seven refused, and no more than three held.

    The engine stands still until all refusals have come.
    """
    engine = scripted(tmp_path, {"default": {"steps": [{"text": "ok"}]}})
    arguments = (str(nano), *MODEL, "--max-pending-requests", "2", "--max-request-mib", "4")
    body = json.dumps(chat_body(zzz="x" * (4 * MIB - 200))).encode()
    with ServerProcess(tmp_path, arguments, engine=engine) as server:
        client = server.wait_ready()
        assert client.chat().status == 200
        before = resident_bytes(server.process.pid)
        os.kill(server.engine_pid(), signal.SIGSTOP)
        found: list[Answer] = []
        threads = [
            threading.Thread(
                target=lambda: found.append(client.request("POST", "/v1/chat/completions", body))
            )
            for _ in range(10)
        ]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(found) == 7, 60)
        os.kill(server.engine_pid(), signal.SIGCONT)
        for thread in threads:
            thread.join()
        grown = resident_bytes(server.process.pid) - before
    assert sorted(answer.status for answer in found) == [200] * 3 + [429] * 7
    # While one is parsed it is there as received, as one piece and as values.
    assert grown < 3 * 3 * 4 * MIB + 8 * MIB


@pytest.mark.clause("HTTP-022", "OPT-033")
def test_only_the_raw_body_makes_a_413(nano: Path) -> None:
    assert option_table("ninfer-serve").named("--max-request-mib").default == 384
    with serving(nano, RecordingEngine(), (*MODEL, "--max-request-mib", "1")) as client:
        for size, status, code in (
            (MIB + 1, 413, "request_too_large"),
            (11 * MIB // 10, 413, "request_too_large"),
            (MIB, 400, "invalid_json"),
            (1000, 400, "invalid_json"),
        ):
            answer = client.request("POST", "/v1/chat/completions", b"!" * size)
            assert (answer.status, answer.error["code"]) == (status, code)
        near = json.dumps(chat_body(zzz="x" * (9 * MIB // 10))).encode()
        assert client.request("POST", "/v1/chat/completions", near).status == 200


def test_no_prompt_answer_or_key_reaches_the_log(nano: Path, tmp_path: Path) -> None:
    """At the most talkative level, with answers, refusals and failures."""
    marks = ["marmalade-prompt", "otter-answer", "walnut-key", "pickle-value", "cactus-name"]
    plays = {
        "default": {"steps": [{"text": "otter-answer"}]},
        "plays": {"1": {"steps": [{"text": "otter-answer"}, {"fail": "assertion"}]}},
    }
    arguments = (str(nano), *MODEL, "--log-level", "trace", "--api-key", "walnut-key")
    key = {"Authorization": "Bearer walnut-key"}
    asked = {"messages": [{"role": "user", "content": "marmalade-prompt"}]}
    with ServerProcess(tmp_path, arguments, engine=scripted(tmp_path, plays)) as server:
        client = server.wait_ready()

        def chat(headers: dict[str, str], **members: Any) -> int:
            body = chat_body(**asked, **members)
            return client.request("POST", "/v1/chat/completions", body, headers).status

        assert chat(key) == 200
        assert chat(key, seed=1) == 500
        assert chat(key, seed=1, stream=True) == 200
        assert chat(key, reasoning_effort="pickle-value") == 400
        assert chat(key, model="cactus-name") == 404
        assert chat({"Authorization": "Bearer walnut-key-not"}) == 401
        assert client.request("POST", "/v1/chat/completions", b"{marmalade-prompt", key).status == 400
        assert client.request("GET", "/v1/cactus-name?key=walnut-key", None, key).status == 404
        with client.raw(b"GET /marmalade-prompt HTTP/9.9\r\n\r\n") as sock:
            read_all(sock)
        assert server.stop() == 0
        log = server.log
    assert "scripted failure" in log  # what went wrong is told, and where
    for mark in marks:
        assert mark not in log


@pytest.fixture(scope="module")
def patient(nano: Path) -> Iterator[Client]:
    """The limits as they are."""
    plays = {
        "1": Play((Step(wait_s=13), Step(text="late</think>\n\n"), Step(text="x", wait_s=7.5))),
        "2": Play((Step(text="otter", wait_s=0.02),), repeat=900),
    }
    with serving(nano, RecordingEngine(Script(plays=plays)), MODEL) as client:
        yield client


@pytest.mark.clause("LIVE-001")
def test_a_silent_stream_says_something_every_five_seconds(patient: Client) -> None:
    """In a 13 s prefill, and again between two tokens."""
    with patient.open_chat(seed=1, stream=True) as sock:
        times, received = list[float](), b""
        while b"[DONE]" not in received:
            piece = sock.recv(65536)
            times += [time.monotonic()] * piece.count(b": keep-alive\n\n")
            received += piece
    assert len(times) == 3
    assert 4.5 < times[1] - times[0] < 8


@pytest.mark.clause("LIVE-007")
@pytest.mark.campaign
def test_a_reader_of_a_minute_is_not_gone(patient: Client) -> None:
    read_slowly(patient, 60)


def test_a_slow_reader_is_not_gone(patient: Client) -> None:
    """Longer than an unacknowledged byte may stay."""
    read_slowly(patient, 17)


def read_slowly(client: Client, seconds: float) -> None:
    """A few bytes of an answer of 18 s are read at a time, then the rest."""
    received = b""
    with client.open_chat(seed=2, stream=True, max_tokens=10**6) as sock:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            received += sock.recv(50)
            time.sleep(0.3)
        received += read_until(sock, b"[DONE]")
    assert received.count(b'"reasoning_content":"otter"') == 900


@pytest.mark.clause("LIVE-008")
@pytest.mark.parametrize("stream", [False, True])
def test_closing_the_upstream_cancels(nano: Path, stream: bool) -> None:
    """What a proxy does when its client leaves: the running gauge drops and the lane takes the next."""
    endless = Play((Step(text="x", wait_s=0.02),), repeat=10**6)
    with serving(nano, RecordingEngine(Script(plays={"1": endless})), MODEL) as client:
        sock = client.open_chat(seed=1, stream=stream, max_tokens=10**6)
        wait_for(lambda: metric(client, "ninfer_requests_running") == 1)
        sock.close()
        wait_for(lambda: metric(client, "ninfer_requests_running") == 0)
        wait_for(lambda: outcomes(client) == {"cancelled": 1})
        assert client.chat().status == 200


def metric(client: Client, name: str) -> float:
    lines = client.get("/metrics").body.decode().splitlines()
    (value,) = (line.split()[1] for line in lines if line.split()[0] == name)
    return float(value)


def outcomes(client: Client) -> dict[str, int]:
    """Finished requests by outcome, those with none left out."""
    text = client.get("/metrics").body.decode()
    rows = re.findall(r'^ninfer_requests_total\{[^}]*outcome="(\w+)"[^}]*\} (\d+)', text, re.MULTILINE)
    return {name: int(count) for name, count in rows if int(count)}


def wait_for(condition: Any, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.clause("LIVE-006")
def test_a_vanished_peer_is_cancelled_after_about_20_seconds(nano: Path) -> None:
    """In prefill, in the queue and in decode: the link goes down, no end of the connection is told."""
    own_network = ["unshare", "--map-root-user", "--net"]
    try:
        able = subprocess.run(
            [*own_network, "ip", "link", "set", "lo", "up"], capture_output=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("this system has no unshare or ip")
    if able.returncode != 0:
        pytest.skip(f"no network of its own here: {able.stderr.decode().strip()}")
    command = [*own_network, sys.executable, "-m", "tests.server.vanished_peer", str(nano)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    seconds = json.loads(done.stdout)
    assert len(seconds) == 3
    for name, found in seconds.items():
        assert 10 < found < 26, f"{name}: {seconds}"
