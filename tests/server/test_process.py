"""The server as a process: what it loads, how it starts and stops, and what the engine's end does to it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Client, dechunked, read_all, read_until
from conformance.http.streams import chat_events, check_order, payloads
from tests.server.conftest import MODEL
from tests.server.processes import ROOT, ServerProcess, exists, kill, wait_gone, wait_queued

SLOW = {"steps": [{"text": "x", "wait_s": 0.02}], "repeat": 10**6}
PLAYS = {"1": SLOW, "2": {"steps": [{"text": "x"}, {"fail": "device"}]}}
LONG: dict[str, Any] = {"seed": 1, "max_tokens": 10**6}

Start = Callable[..., ServerProcess]


@pytest.fixture
def start(tmp_path: Path, nano: Path) -> Iterator[Start]:
    """Starts server processes whose engine plays ``PLAYS``; all are ended."""
    running: list[ServerProcess] = []

    def start(*arguments: str, **script: Any) -> ServerProcess:
        path = tmp_path / f"script-{len(running)}.json"
        path.write_text(json.dumps({"plays": PLAYS, **script}))
        engine = {"engine": "scripted", "script": str(path)}
        running.append(ServerProcess(tmp_path, [str(nano), *MODEL, *arguments], engine=engine))
        return running[-1]

    yield start
    for server in running:
        server.__exit__(None, None, None)


def error_code(sock: socket.socket) -> tuple[int, str]:
    """Status and code of an unread answer that is an error."""
    with sock:
        received = read_until(sock, b"}}")
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def test_no_part_of_the_server_imports_torch() -> None:
    program = (
        "import sys\n"
        "import ninfer.server.main, ninfer.server.app, ninfer.server.assemble, ninfer.cli.main\n"
        "heavy = {'torch', 'transformers', 'triton', 'numba'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_the_terminal_program_imports_no_web_framework() -> None:
    program = (
        "import sys\n"
        "import ninfer.cli.main, ninfer.server.resolution, ninfer.server.served_model\n"
        "import ninfer.server.chat.messages, ninfer.server.chat.refusals\n"
        "assert 'sanic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_a_serving_process_has_not_loaded_torch(tmp_path: Path, nano: Path) -> None:
    """With the reference engine behind it, which has; and the answer is real."""
    with ServerProcess(tmp_path, [str(nano), *MODEL]) as server:
        client = server.wait_ready()
        answer = client.chat(max_tokens=3, temperature=0)
        assert answer.status == 200
        assert answer.json["usage"]["completion_tokens"] == 3
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert "torch" not in maps
        assert "torch" in Path(f"/proc/{server.engine_pid()}/maps").read_text()
        assert server.stop() == 0


class Begun:
    """A stream of which text has arrived."""

    def __init__(self, client: Client) -> None:
        self._sock = client.open_chat(stream=True, **LONG)
        self._received = read_until(self._sock, b"reasoning_content")

    def error(self) -> str:
        """The code of the error event that ends the stream."""
        with self._sock:
            body = dechunked(self._received + read_all(self._sock))
        stream = payloads(body)
        events = chat_events(stream)
        check_order("chat", events)
        assert events[-1] == "error"
        last = stream[-1]
        assert not isinstance(last, str)
        return str(last["error"]["code"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_stop_ends_every_request_and_the_process(start: Start, number: int) -> None:
    server = start()
    client = server.wait_ready()
    engine = server.engine_pid()
    running, queued = Begun(client), client.open_chat(**LONG)
    wait_queued(client, 1)
    server.process.send_signal(number)
    if number == signal.SIGINT:
        server.wait_for("Press Ctrl+C again within 5 s to close")
        server.process.send_signal(number)
    assert running.error() == "service_unavailable"
    assert error_code(queued) == (503, "service_unavailable")
    assert server.process.wait(20) == 0
    wait_gone(engine)
    assert "server stopped" in server.log
    with pytest.raises(ConnectionRefusedError):
        client.get("/health")


def test_a_stop_during_the_load_ends_the_start(start: Start) -> None:
    server = start(load_s=60)
    server.wait_for("parameters=")
    engine = server.engine_pid()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(20) == 130
    wait_gone(engine)


@pytest.mark.clause("HTTP-021")
def test_the_engines_death_is_503_until_a_restart(start: Start) -> None:
    server = start()
    client = server.wait_ready()
    running = Begun(client)
    queued = [client.open_chat(**LONG), client.open_chat(stream=True, **LONG)]
    wait_queued(client, 2)
    kill(server.engine_pid())
    assert running.error() == "engine_unavailable"
    assert [error_code(sock) for sock in queued] == [(503, "engine_unavailable")] * 2
    for _ in range(2):
        health = client.get("/health")
        assert (health.status, health.body) == (503, b'{"status":"unavailable"}')
        answer = client.chat()
        assert (answer.status, answer.error["code"]) == (503, "engine_unavailable")
    assert client.get("/v1/models").status == 200
    assert "the engine process ended (exit status -9)" in server.log
    assert server.stop() == 0


def test_a_device_error_ends_the_server_too(start: Start) -> None:
    server = start()
    client = server.wait_ready()
    with client.open_chat(seed=2, stream=True):
        assert server.wait_end() == 1
    last = server.log.strip().splitlines()[-1]
    assert last == "CUDA_CHECK(...) failed: CUDA error: an illegal memory access was encountered"


def test_an_engine_that_cannot_load_ends_the_start(start: Start) -> None:
    server = start(load_error="the weights are cut")
    assert server.wait_end() == 1
    assert server.log.strip().splitlines()[-1] == "ninfer-serve: script: the weights are cut"
    assert "listening on" not in server.log


def test_the_start_is_told_and_a_killed_server_leaves_no_engine_behind(start: Start) -> None:
    server = start()
    client = server.wait_ready()
    lines = server.log.strip().splitlines()
    assert [line for line in lines if " INFO " not in line] == []
    assert "model=nano parameters=" in server.log
    assert "engine=scripted loaded in" in server.log
    assert lines[-1].endswith(f"listening on {client.base_url}")
    engine = server.engine_pid()
    assert exists(engine)
    server.process.kill()
    wait_gone(engine)
