"""A small HTTP client over raw sockets: whole answers, streams byte by byte, and clients that leave."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Mapping[str, Any]:
        """The members of the error envelope."""
        error: Mapping[str, Any] = self.json["error"]
        return error


@dataclass(frozen=True, slots=True)
class Client:
    """Requests to one server; every call has its own connection."""

    base_url: str
    timeout_s: float = TIMEOUT_S
    headers: Mapping[str, str] = field(default_factory=dict)

    def request(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request; a body that is not bytes is sent as JSON."""
        connection = self._connect()
        try:
            connection.request(method, path, _encoded(body), {**self.headers, **(headers or {})})
            return _answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        return self.request("GET", path)

    def chat(self, **members: Any) -> Answer:
        """``POST /v1/chat/completions`` with one user message unless ``messages`` are given."""
        return self.request("POST", "/v1/chat/completions", chat_body(**members))

    def open_chat(self, **members: Any) -> socket.socket:
        """Send a chat request and leave the answer unread."""
        payload = json.dumps(chat_body(**members)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Length: {len(payload)}\r\n\r\n"
        return self.raw(head.encode() + payload)

    def raw(self, data: bytes) -> socket.socket:
        """A connection on which ``data`` was sent."""
        host, port = self._address()
        sock = socket.create_connection((host, port), timeout=self.timeout_s)
        sock.sendall(data)
        return sock

    def _connect(self) -> HTTPConnection:
        return HTTPConnection(*self._address(), timeout=self.timeout_s)

    def _address(self) -> tuple[str, int]:
        parts = urlsplit(self.base_url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port


def chat_body(**members: Any) -> dict[str, Any]:
    return {"model": "nano", "messages": [{"role": "user", "content": "hi"}]} | members


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    """Everything received up to and with ``mark``."""
    received = b""
    while mark not in received:
        piece = sock.recv(65536)
        assert piece, f"the connection ended before {mark!r}: {received[-200:]!r}"
        received += piece
    return received


def read_all(sock: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    return b"".join(iter(lambda: sock.recv(65536), b""))


def dechunked(data: bytes) -> bytes:
    """The body of a chunked answer, which must be whole."""
    head, _, rest = data.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower(), head
    return b"".join(_chunks(rest))


def _chunks(data: bytes) -> Iterator[bytes]:
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            return
        yield data[:length]
        assert data[length : length + 2] == b"\r\n"
        data = data[length + 2 :]


def _encoded(body: object) -> bytes | None:
    return body if body is None or isinstance(body, bytes) else json.dumps(body).encode()


def _answer(response: HTTPResponse) -> Answer:
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, response.read())
