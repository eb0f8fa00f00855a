"""Clients of the fast engine's tests: streams read as far as a test wants, readers that stall."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pytest

from conformance.http.client import Client, chat_body, dechunked, read_all, read_until
from conformance.http.streams import Payload, chat_events, check_order, payloads, text_of
from ninfer.server import listen
from tests.server import inprocess

END = b"0\r\n\r\n"
# What the kernel may hold of an unread answer, at both ends of a connection.
SMALL = 4096


class Stream:
    """A streamed chat request; ``wait`` and ``payloads`` read, leaving the block closes the connection."""

    def __init__(self, client: Client, **members: Any) -> None:
        self.sock = client.open_chat(stream=True, **members)
        self._received = b""

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()

    def wait(self, events: int = 2) -> Stream:
        """Read until that many events came; the second one is the first text."""
        while self._received.count(b"data: ") < events:
            self._read()
        return self

    def payloads(self) -> list[Payload]:
        """The whole stream, whose order is checked."""
        while not self._received.endswith(END):
            self._read()
        stream = payloads(dechunked(self._received))
        check_order("chat", chat_events(stream))
        return stream

    def error(self) -> tuple[int, str]:
        """Status and code of an answer that is an error, before or in the stream."""
        if not self._received:
            self._read()
        if self._received.startswith(b"HTTP/1.1 200 "):
            last = self.payloads()[-1]
            assert not isinstance(last, str)
            return 200, str(last["error"]["code"])
        while b"}}" not in self._received:
            self._read()
        return status_and_code(self._received)

    def _read(self) -> None:
        piece = self.sock.recv(65536)
        assert piece, f"the connection ended: {self._received[-200:]!r}"
        self._received += piece


def said(stream: list[Payload]) -> str:
    """All text of a stream, of both channels."""
    return text_of(stream, "reasoning_content") + text_of(stream)


def status_and_code(received: bytes) -> tuple[int, str]:
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def error_of(sock: socket.socket) -> tuple[int, str]:
    """Status and code of an unread answer that is an error."""
    with sock:
        return status_and_code(read_until(sock, b"}}"))


def stalled_chat(client: Client, **members: Any) -> socket.socket:
    """A chat request, streamed unless said otherwise, whose reader takes nothing."""
    sock = socket.socket()
    sock.settimeout(30)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    sock.connect(("127.0.0.1", int(client.base_url.rpartition(":")[2])))
    body = json.dumps(chat_body(**{"stream": True} | members)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n"
    sock.sendall(head.encode() + b"Connection: close\r\n\r\n" + body)
    return sock


def late_stream(sock: socket.socket) -> list[Payload]:
    """What a stalled reader finds when it reads at last."""
    with sock:
        return payloads(dechunked(read_all(sock)))


def small_send_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that start in this test leave unread answers to themselves, not to the kernel."""

    def bind(host: str, port: int) -> socket.socket:
        sock = listen.bind(host, port)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        return sock

    monkeypatch.setattr(inprocess, "bind", bind)


def eventually(true: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Wait until ``true()`` is."""
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.005)
