"""Bytes on the wire: framing, limits, deadlines, slow readers and clients that leave."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conformance.http.client import Client, chat_body, dechunked, read_all, read_until
from conformance.http.schemas import check_schema
from conformance.http.streams import event_data
from ninfer.engine.scripted import Play, Script, Step
from tests.server.conftest import MODEL
from tests.server.engines import HeldEngine, RecordingEngine
from tests.server.inprocess import serving
from tests.server.processes import wait_queued

LIMITS = {
    "header_timeout_s": 1.0,
    "body_idle_timeout_s": 0.9,
    "body_timeout_s": 4.0,
    "linger_bytes": 2**20,
    "send_timeout_s": 2.0,
    "stream_comment_after_s": 0.15,
    "keep_alive_timeout_s": 1.0,
}
ENDLESS = Play((Step(text="0123456789abcdef" * 8),), repeat=10**6)
SLOW = Play((Step(text="x", wait_s=0.02),), repeat=10**6)
FLOOD = Play((Step(text="x" * 65536, wait_s=0.005),), repeat=10**6)
SILENT = Play((Step(text="late"),))
FOREVER = {"max_tokens": 10**6}


@pytest.fixture(scope="module")
def engine() -> RecordingEngine:
    return RecordingEngine(Script(plays={"1": ENDLESS, "2": SLOW, "4": FLOOD}))


@pytest.fixture(scope="module")
def client(nano: Path, engine: RecordingEngine) -> Iterator[Client]:
    arguments = (*MODEL, "--max-request-mib", "1", "--max-context", "32768")
    with serving(nano, engine, arguments, limits=LIMITS) as client:
        yield client


def post(head: str, body: bytes = b"") -> bytes:
    return f"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\n{head}\r\n\r\n".encode() + body


def refused(client: Client, data: bytes) -> tuple[int, str]:
    """Status and code of an answer after which the connection ends."""
    with client.raw(data) as sock:
        received = read_all(sock)
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"x-request-id: " in head
    check_schema("Error", json.loads(body))
    return int(head.split()[1]), json.loads(body)["error"]["code"]


GOOD = json.dumps(chat_body()).encode()


LENGTH = f"Content-Length: {len(GOOD)}"
BAD_BYTES = {
    "garbage": (b"nonsense\r\n\r\n", 400, "bad_request"),
    "version": (b"GET /health HTTP/9.9\r\n\r\n", 400, "bad_request"),
    "path-bytes": (b"GET /\xff HTTP/1.1\r\n\r\n", 400, "bad_request"),
    "length-text": (post("Content-Length: x"), 400, "bad_request"),
    "length-negative": (post("Content-Length: -5"), 400, "bad_request"),
    "two-lengths": (post("Content-Length: 1\r\nContent-Length: 2"), 400, "bad_request"),
    "both-framings": (post("Content-Length: 1\r\nTransfer-Encoding: chunked"), 400, "bad_request"),
    "bad-chunk": (post("Transfer-Encoding: chunked", b"zz\r\n"), 400, "bad_request"),
    "large-head": (post("X: " + "y" * 20_000), 431, "headers_too_large"),
    "declared-large": (post("Content-Length: 9000000", b"{"), 413, "request_too_large"),
    "chunked-large": (
        post("Transfer-Encoding: chunked", b"100001\r\n" + b"x" * 0x100001 + b"\r\n0\r\n\r\n"),
        413,
        "request_too_large",
    ),
    "slow-head": (b"POST /v1/chat", 408, "request_timeout"),
    "expectation": (post(f"Expect: magic\r\n{LENGTH}", GOOD), 417, "expectation_failed"),
    "expectation-bytes": (
        post(f"Expect: magic\r\n{LENGTH}", GOOD).replace(b"magic", b"\xff"),
        417,
        "expectation_failed",
    ),
    "method-bytes": (b"G\xffT /health HTTP/1.1\r\nConnection: close\r\n\r\n", 405, "method_not_allowed"),
    "compressed": (
        post(f"Connection: close\r\nContent-Encoding: gzip\r\n{LENGTH}", GOOD),
        415,
        "unsupported_encoding",
    ),
}


@pytest.mark.parametrize(("data", "status", "code"), BAD_BYTES.values(), ids=BAD_BYTES)
def test_wrong_bytes_have_statuses(client: Client, data: bytes, status: int, code: str) -> None:
    assert refused(client, data) == (status, code)
    assert client.get("/health").status == 200


def test_a_silent_body_ends_at_the_idle_deadline(client: Client) -> None:
    began = time.monotonic()
    assert refused(client, post("Content-Length: 50", b"{")) == (408, "request_timeout")
    assert time.monotonic() - began < LIMITS["body_timeout_s"] - 0.5


def test_a_refused_body_is_read_on_so_that_its_sender_sees_why(client: Client) -> None:
    """Senders that write everything first would otherwise only see a broken pipe."""
    body = b"{" * (2**20 + 2**19)
    for _ in range(5):
        answer = client.request("POST", "/v1/chat/completions", body)
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")


def test_a_body_that_trickles_ends_at_the_total_deadline(client: Client) -> None:
    began = time.monotonic()
    with client.raw(post("Content-Length: 1000", b"{")) as sock:
        sock.settimeout(0.1)
        received = b""
        while not received and time.monotonic() - began < 10:
            try:
                received = sock.recv(65536)
            except TimeoutError:
                sock.sendall(b" ")
    assert received.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("form", ["chunked", "two-pieces", "continue"])
def test_bodies_in_pieces_are_read(client: Client, form: str) -> None:
    close = "Connection: close\r\n"
    if form == "chunked":
        pieces = [b"%x\r\n%s\r\n" % (len(part), part) for part in (GOOD[:10], GOOD[10:])]
        data = [post(close + "Transfer-Encoding: chunked"), *pieces, b"0\r\n\r\n"]
    elif form == "two-pieces":
        data = [post(close + f"Content-Length: {len(GOOD)}", GOOD[:10]), GOOD[10:]]
    else:
        data = [post(close + f"Expect: 100-continue\r\nContent-Length: {len(GOOD)}")]
    with client.raw(data[0]) as sock:
        if form == "continue":
            assert read_until(sock, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            data.append(GOOD)
        for piece in data[1:]:
            time.sleep(0.02)
            sock.sendall(piece)
        assert read_all(sock).startswith(b"HTTP/1.1 200 OK")


def test_requests_follow_each_other_on_one_connection(client: Client) -> None:
    one = post(f"Content-Length: {len(GOOD)}", GOOD)
    last = post(f"Connection: close\r\nContent-Length: {len(GOOD)}", GOOD)
    with client.raw(one + one + last) as sock:
        assert read_all(sock).count(b"HTTP/1.1 200 OK") == 3


def test_an_idle_connection_is_closed(client: Client) -> None:
    with client.raw(b"") as sock:
        assert read_all(sock) == b""


@pytest.mark.clause("HTTP-018")
def test_headers_of_a_stream_come_before_its_first_event(client: Client) -> None:
    with client.open_chat(seed=2, stream=True, **FOREVER) as sock:
        head = read_until(sock, b"\r\n\r\n").partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 200 ok")
    for header in (b"content-type: text/event-stream", b"x-request-id: req_", b"cache-control: no-cache"):
        assert header in head


def test_a_silent_stream_sends_comments(nano: Path) -> None:
    """During prefill, as long as it takes; the comment changes no event."""
    engine = HeldEngine(Script(default=SILENT))
    with serving(nano, engine, MODEL, limits=LIMITS) as client, client.open_chat(stream=True) as sock:
        received = read_until(sock, b": keep-alive\n\n")
        while received.count(b": keep-alive\n\n") < 2:
            received += read_until(sock, b": keep-alive\n\n")
        engine.going.set()
        body = dechunked(received + read_until(sock, b"0\r\n\r\n"))
    events = list(event_data(body))
    assert [json.loads(event)["choices"][0]["delta"] for event in events[:-1]] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "late"},
        {},
    ]
    assert events[-1] == "[DONE]"


def test_a_stream_in_the_queue_opens_with_a_comment(client: Client) -> None:
    with client.open_chat(seed=2, stream=True, **FOREVER) as running:
        read_until(running, b"reasoning_content")
        with client.open_chat(stream=True) as queued:
            received = read_until(queued, b": keep-alive\n\n")
            assert b"HTTP/1.1 200 OK" in received
            assert b"data:" not in received
            running.close()
            read_until(queued, b"[DONE]")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_the_engine(client: Client, stream: bool) -> None:
    """While running and while queued; both would take minutes."""
    engine_busy = client.open_chat(seed=2, stream=True, **FOREVER)
    read_until(engine_busy, b"reasoning_content")
    queued = client.open_chat(seed=2, stream=stream, **FOREVER)
    wait_queued(client, 1)
    queued.close()
    engine_busy.close()
    assert client.chat().status == 200


def test_a_queued_request_whose_client_left_is_never_started(client: Client, engine: RecordingEngine) -> None:
    with client.open_chat(seed=2, stream=True, **FOREVER) as running:
        read_until(running, b"reasoning_content")
        queued = client.open_chat(seed=1, max_tokens=123)
        wait_queued(client, 1)
        queued.close()
        wait_queued(client, 0)
    assert client.chat().status == 200
    assert not any(request.max_tokens == 123 for request in engine.requests)


def test_a_reader_that_takes_nothing_is_cancelled(client: Client, engine: RecordingEngine) -> None:
    """The engine would be busy for minutes; the next request waits for the send deadline only."""
    before = len(engine.requests)
    sock = socket.socket()
    began = time.monotonic()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", int(client.base_url.rpartition(":")[2])))
    payload = json.dumps(chat_body(seed=4, stream=True, **FOREVER)).encode()
    sock.sendall(post(f"Content-Length: {len(payload)}", payload))
    while len(engine.requests) == before:
        time.sleep(0.01)
    assert client.chat().status == 200
    assert LIMITS["send_timeout_s"] < time.monotonic() - began < 25
    sock.close()


def test_a_slow_reader_loses_nothing(client: Client) -> None:
    """A reader slower than the engine gets larger deltas, never fewer characters."""
    with client.open_chat(seed=1, stream=True, max_tokens=2000) as sock:
        received = b""
        while b"0\r\n\r\n" not in received[-10:]:
            received += sock.recv(20_000)
            time.sleep(0.002)
    events = [json.loads(event) for event in event_data(dechunked(received)) if event != "[DONE]"]
    text = "".join(event["choices"][0]["delta"].get("reasoning_content", "") for event in events)
    assert text == "0123456789abcdef" * 8 * 2000
    assert len(events) < 2000


def test_a_flood_leaves_others_their_turn(client: Client) -> None:
    """An engine that always has more and a reader that takes it all: the server still answers others."""
    with client.open_chat(seed=1, stream=True, **FOREVER) as sock:
        ended = threading.Event()

        def drain() -> None:
            while not ended.is_set() and sock.recv(1 << 20):
                pass

        reader = threading.Thread(target=drain)
        reader.start()
        try:
            read_times = []
            for _ in range(20):
                began = time.monotonic()
                assert client.get("/health").status == 200
                read_times.append(time.monotonic() - began)
        finally:
            ended.set()
            reader.join()
    assert sorted(read_times)[10] < 1, read_times


def test_deep_bodies_do_not_hold_up_others(client: Client) -> None:
    """Case B28 of public reports: refused in bounded time, a small request is answered meanwhile."""
    deep = b"[" * (2**20 - 10)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(client.request, "POST", "/v1/chat/completions", deep) for _ in range(4)]
        began = time.monotonic()
        assert client.get("/v1/models").status == 200
        assert time.monotonic() - began < 10
        assert {answer.result().error["code"] for answer in answers} == {"invalid_json"}


def test_the_queue_is_bounded(nano: Path) -> None:
    """One running and 16 waiting; the next is refused, and a full queue does not change health."""
    with serving(nano, RecordingEngine(Script(default=SLOW)), MODEL, limits=LIMITS) as client:
        socks = [client.open_chat(stream=True, **FOREVER) for _ in range(17)]
        for sock in socks:
            read_until(sock, b"HTTP/1.1 200 OK")
        answer = client.chat()
        assert (answer.status, answer.error["code"]) == (429, "server_overloaded")
        assert answer.headers["retry-after"]
        assert client.get("/health").status == 200
        assert client.get("/v1/models").status == 200
        for sock in socks:
            sock.close()
        deadline = time.monotonic() + 10
        while client.chat(max_tokens=1).status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)
