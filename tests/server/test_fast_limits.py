"""Limits of the fast engine's server: context, lanes, queue, deadline; what is held and what is refused."""

from __future__ import annotations

import json
import resource
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Client, chat_body, read_all, read_until
from ninfer.cli.engine_options import engine_settings
from ninfer.cli.parser import parse
from ninfer.engine.events import Finished
from ninfer.engine.scripted import Play, Script, Step
from ninfer.fast import start
from ninfer.fast.memory.ledger import AUTO_SHARE, page_bytes
from ninfer.prompt import PromptPreparer
from ninfer.prompt.conversation import Conversation
from ninfer.prompt.prepared import PreparedPrompt
from ninfer.server.assemble import open_model
from ninfer.server.main import main
from tests.fast.conftest import COLD_LIMIT_S, compiled  # noqa: F401  (kernels before any server)
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.fast_client import (
    Stream,
    error_of,
    eventually,
    late_stream,
    said,
    small_send_buffers,
    stalled_chat,
    status_and_code,
)
from tests.server.fast_host import serving_fast
from tests.server.inprocess import serving
from tests.support.nano import nano_artifact

pytestmark = pytest.mark.timeout(COLD_LIMIT_S)

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 4}
OVERLOADED = (429, "server_overloaded")


def one_at_a_time(pending: int) -> tuple[str, ...]:
    return ("--max-concurrency", "1", "--max-pending-requests", str(pending))


def code_of(client: Client, **members: Any) -> tuple[int, str]:
    answer = client.chat(**GREEDY | members)
    return answer.status, "" if answer.status == 200 else str(answer.error["code"])


def model_of(client: Client) -> Mapping[str, Any]:
    (model,) = client.get("/v1/models").json["data"]
    return dict(model)


# --- context and capacity ------------------------------------------------------------------------------


@pytest.mark.clause("OPT-007")
def test_the_context_of_every_sequence(nano: Path) -> None:
    with serving_fast(nano) as (client, _):
        model = model_of(client)
        assert model["max_model_len"] == model["meta"]["n_ctx"] == 8192
    with serving_fast(nano, ("--max-context", "4096")) as (client, _):
        model = model_of(client)
        assert model["max_model_len"] == model["meta"]["n_ctx"] == 4096
        frame = client.chat(**GREEDY | user("7")).json["usage"]["prompt_tokens"] - 1
        fitting = client.chat(**GREEDY | user("7" * (4094 - frame)))  # a digit is a token
        usage = fitting.json["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (4094, 2)
        over = client.chat(**GREEDY | user("7" * (4097 - frame)))
        assert (over.status, over.error["code"]) == (400, "context_length_exceeded")
        assert "4097" in over.error["message"]


def user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


@pytest.mark.clause("START-005")
def test_the_context_is_not_shared_between_lanes(tmp_path: Path) -> None:
    """Both requests reserve a prompt and an output that fill the context, and both run at once."""
    artifact = nano_artifact(tmp_path, max_position_embeddings=262144)
    arguments = ("--max-context", "240000", "--max-concurrency", "2")
    with serving_fast(artifact, arguments) as (client, host):
        assert model_of(client)["max_model_len"] == 240000
        whole = {"temperature": 0, "max_tokens": 240000}
        with Stream(client, **whole) as first, Stream(client, **whole) as second:
            first.wait(20)
            second.wait(20)
        assert 2 in host.program.rounds
        eventually(lambda: host.count(Finished) == 2)


@pytest.mark.clause_early("CAP-008")
def test_capacity_is_resolved_once(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine says of its free memory stands for another process that frees 4 GiB."""
    config, pages = open_model(parse("ninfer-serve", [str(nano)]), nano).config, 150
    free = [int(pages * page_bytes(config, "bf16") / AUTO_SHARE)]
    monkeypatch.setattr(start, "available_bytes", lambda: free[0])
    with serving_fast(nano, ("--max-concurrency", "2")) as (client, host):
        free[0] += 4 * 2**30
        assert f" kv_capacity_tokens={64 * pages} " in host.ledger
        with Stream(client, **GREEDY | {"max_tokens": 3000}) as first, Stream(client, **GREEDY) as second:
            first.wait()
            second.wait()
        eventually(lambda: host.count(Finished) == 2)
        assert host.program.options.pages == pages


# --- lanes and queue -----------------------------------------------------------------------------------


@pytest.mark.clause_early("OPT-013")
def test_lanes(nano: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Until there are metrics, the ledger of the start tells the number."""
    assert engine_settings(parse("ninfer-serve", [str(nano)]), nano).lanes == 1
    for arguments, lanes in (((), 1), (("--max-concurrency", "8"), 8)):
        with serving_fast(nano, arguments) as (client, host):
            assert client.chat(**GREEDY).status == 200
            assert host.ledger.endswith(f" lanes={lanes}")
    for value in ("0", "9"):
        assert main([str(nano), "--max-concurrency", value]) == 2
        assert capsys.readouterr().err.startswith("ninfer-serve: --max-concurrency: ")


@pytest.mark.clause("OPT-014", "HEALTH-003")
@pytest.mark.parametrize(("arguments", "held"), [(one_at_a_time(1), 2), ((), 17)])
def test_requests_that_may_wait(nano: Path, arguments: tuple[str, ...], held: int) -> None:
    with serving_fast(nano, arguments) as (client, host):
        host.program.going.clear()
        streams = [Stream(client, **GREEDY | {"max_tokens": 100}) for _ in range(held)]
        eventually(lambda: host.submitted == held)
        assert code_of(client) == OVERLOADED
        health = client.get("/health")
        assert (health.status, health.body) == (200, b'{"status":"ok"}')
        host.program.going.set()
        texts = set()
        for stream in streams:
            with stream:
                texts.add(said(stream.payloads()))
        assert len(texts) == 1
        assert code_of(client) == (200, "")


@pytest.mark.clause("CHAT-024", "OPT-015")
def test_capacity_and_availability_have_their_own_codes(nano: Path) -> None:
    arguments = (*one_at_a_time(1), "--pending-timeout-ms", "1500")
    with serving_fast(nano, arguments) as (client, host):
        host.program.before = lambda kind: time.sleep(0.002)
        with Stream(client, **GREEDY | {"max_tokens": 8000}) as busy:
            busy.wait()
            host.program.going.clear()
            began = time.monotonic()
            waiting = client.open_chat(**GREEDY)
            eventually(lambda: host.submitted == 2)
            assert code_of(client) == OVERLOADED
            host.program.going.set()
            assert error_of(waiting) == (503, "request_queue_timeout")
            assert time.monotonic() - began >= 1.5
            busy.wait(200)  # goes on
        eventually(lambda: code_of(client) == (200, ""))


class HeldPreparation:
    """Prompts that contain "slow" are prepared once ``going`` is set."""

    def __init__(self) -> None:
        self.begun, self.going = threading.Event(), threading.Event()
        self._prepare = PromptPreparer.prepare

    def __call__(self, preparer: PromptPreparer, conversation: Conversation) -> PreparedPrompt:
        if "slow" in repr(conversation):
            self.begun.set()
            assert self.going.wait(60)
        return self._prepare(preparer, conversation)


@pytest.fixture
def held_preparation(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldPreparation]:
    held = HeldPreparation()
    monkeypatch.setattr(PromptPreparer, "prepare", lambda *arguments: held(*arguments))
    yield held
    held.going.set()


@pytest.mark.clause("SCHED-001")
def test_an_unread_stream_and_a_request_in_preparation_count(
    nano: Path, monkeypatch: pytest.MonkeyPatch, held_preparation: HeldPreparation
) -> None:
    small_send_buffers(monkeypatch)
    with serving_fast(nano, one_at_a_time(1)) as (client, host):
        host.program.before = lambda kind: time.sleep(0.0005)  # the server shall not fall behind
        unread = stalled_chat(client, temperature=0, max_tokens=2000)
        eventually(lambda: host.count(Finished) == 1)
        with Stream(client, **GREEDY | user("slow")) as preparing:
            assert held_preparation.begun.wait(30)
            assert code_of(client) == OVERLOADED
            time.sleep(0.2)
            assert code_of(client) == OVERLOADED
            assert len(said(late_stream(unread))) > 0
            eventually(lambda: code_of(client) == (200, ""))
            held_preparation.going.set()
            preparing.payloads()


@pytest.mark.clause("SCHED-001")
def test_an_unread_whole_answer_counts(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More text than a connection holds, so that some of it stays the server's."""
    small_send_buffers(monkeypatch)
    engine = RecordingEngine(Script(default=Play((Step(text="x" * 2**20),))))
    with serving(nano, engine, (*MODEL, *one_at_a_time(0))) as client:
        with stalled_chat(client, stream=False) as unread:
            eventually(lambda: code_of(client) == OVERLOADED)
            time.sleep(0.2)
            assert code_of(client) == OVERLOADED
            assert len(read_all(unread)) > 2**20
        eventually(lambda: code_of(client) == (200, ""))
        stalled_chat(client, stream=False).close()
        eventually(lambda: code_of(client) == (200, ""))


@pytest.mark.clause("SCHED-007")
def test_what_comes_beyond_capacity_is_refused_at_once(nano: Path) -> None:
    """500 connections, then 500 requests; the engine stands still until every refusal has come."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))  # both ends are this process's
    try:
        with serving_fast(nano) as (client, host):
            host.program.going.clear()
            answers, held = burst(client, 500, 483)
            assert len(held) == 17
            for received in answers:
                assert status_and_code(received) == OVERLOADED
                error = json.loads(received.partition(b"\r\n\r\n")[2])["error"]
                assert set(error) == {"message", "type", "param", "code"}
            host.program.going.set()
            for sock in held:
                assert read_until(sock, b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")
                sock.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def burst(client: Client, count: int, refusals: int) -> tuple[list[bytes], list[socket.socket]]:
    """Answers that came to ``count`` requests at once, and the connections that are still unanswered."""
    socks = [client.raw(b"") for _ in range(count)]
    body = json.dumps(chat_body(**GREEDY)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n"
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            sock.sendall(head.encode() + body)
            selector.register(sock, selectors.EVENT_READ, sock)
        answers: list[bytes] = []
        while ready := selector.select(30 if len(answers) < refusals else 0.3):
            for key, _ in ready:
                selector.unregister(key.data)
                answers.append(read_until(key.data, b"}}"))
                key.data.close()
        return answers, [key.data for key in selector.get_map().values()]
