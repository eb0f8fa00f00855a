"""A load client for ``/v1/chat/completions``: many streams on one thread, every arrival with its time.

Owns sockets and reading only as far as times need it while the load runs; answers are taken apart afterwards,
so that the client takes as little as possible of the cores that the server computes on.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_CHUNK_HEAD = re.compile(rb"([0-9A-Fa-f]+)[^\r\n]*\r\n")
_RECEIVE = 1 << 16


class LoadError(Exception):
    """The server did not answer as a benchmark needs it."""


@dataclass(slots=True)
class Stream:
    """One streamed request: when it was sent, and what came when (monotonic seconds)."""

    sent_at: float
    pieces: list[tuple[float, bytes]] = field(default_factory=list)

    def answer(self) -> Answer:
        """What the stream amounts to. Errors: ``LoadError`` for anything but a whole streamed answer."""
        raw = b"".join(piece for _, piece in self.pieces)
        head, blank, body = raw.partition(b"\r\n\r\n")
        if not blank or not head.startswith(b"HTTP/1.1 200 "):
            raise LoadError(raw.decode("utf-8", "replace")[:600] or "the connection closed without an answer")
        arrivals: list[float] = []
        usage: Mapping[str, Any] | None = None
        for at, event in self._events(len(head) + 4, body):
            if event == b"[DONE]":
                continue
            members = json.loads(event)
            if "error" in members:
                raise LoadError(str(members["error"]))
            usage = members.get("usage") or usage
            if any(_has_text(choice["delta"]) for choice in members["choices"]):
                arrivals.append(at)
        if usage is None or not arrivals:
            raise LoadError("the stream ended without text or usage")
        return Answer(
            self.sent_at,
            tuple(arrivals),
            self.pieces[-1][0],
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )

    def _events(self, begin: int, body: bytes) -> Iterator[tuple[float, bytes]]:
        """Data of every event with the time at which its last byte had come."""
        text, places = _dechunked(body)
        ends = []
        total = 0
        for at, piece in self.pieces:
            total += len(piece)
            ends.append((total - begin, at))
        times = iter(ends)
        upto, at = next(times)
        start = 0
        while (stop := text.find(b"\n\n", start)) >= 0:
            place = places(stop + 1)
            while place >= upto:
                upto, at = next(times)
            event = text[start:stop]
            if event.startswith(b"data: "):
                yield at, event[6:]
            start = stop + 2


@dataclass(frozen=True, slots=True)
class Answer:
    """Times of one answer: sent, each piece of text, end of the connection; and its tokens."""

    sent_at: float
    arrivals: tuple[float, ...]
    ended_at: float
    prompt_tokens: int
    completion_tokens: int

    @property
    def first_token_s(self) -> float:
        return self.arrivals[0] - self.sent_at

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first piece of text, which may hold more than one."""
        seconds = self.arrivals[-1] - self.arrivals[0]
        return (self.completion_tokens - 1) / seconds if seconds else 0.0

    @property
    def gaps(self) -> list[float]:
        """Seconds between neighbouring pieces of text."""
        return [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)]

    def gaps_within(self, begin: float, end: float) -> list[float]:
        """Those gaps of which some part lies between two moments."""
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return [later - earlier for earlier, later in pairs if later > begin and earlier < end]


def _has_text(delta: Mapping[str, Any]) -> bool:
    return bool(delta.get("content") or delta.get("reasoning_content"))


def _dechunked(body: bytes) -> tuple[bytes, Callable[[int], int]]:
    """The text of a chunked body, and where in the body a byte of the text stood."""
    parts: list[bytes] = []
    shifts: list[tuple[int, int]] = []  # text from this place on stood this much further
    place = length = 0
    while (match := _CHUNK_HEAD.match(body, place)) is not None and (size := int(match[1], 16)):
        shifts.append((length, match.end() - length))
        parts.append(body[match.end() : match.end() + size])
        length, place = length + size, match.end() + size + 2
    index = 0

    def original(at: int) -> int:
        nonlocal index
        while index + 1 < len(shifts) and shifts[index + 1][0] <= at:
            index += 1
        return at + shifts[index][1]

    return b"".join(parts), original


class Client:
    """Runs streams against one server. ``on_text`` of ``run`` may start more while they run."""

    def __init__(self, url: str, model: str | None = None) -> None:
        """Errors: ``LoadError`` when the server does not say what it serves."""
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._selector = selectors.DefaultSelector()
        self._open = 0
        self.model = model or self._first_model()

    def body(self, prompt: str, max_tokens: int, **members: Any) -> bytes:
        """A greedy streamed chat request without thinking."""
        return json.dumps(
            {
                "model": self.model,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": max_tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
                "chat_template_kwargs": {"enable_thinking": False},
                **members,
            }
        ).encode()

    def start(self, body: bytes) -> Stream:
        """Send one request; its stream fills while ``run`` runs."""
        connection = socket.create_connection(self._address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self._address[0]}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        stream = Stream(time.monotonic())
        connection.sendall(head.encode() + body)
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, stream)
        self._open += 1
        return stream

    def run(
        self, done: Callable[[], bool] = lambda: False, on_end: Callable[[Stream], None] | None = None
    ) -> None:
        """Read until every stream has ended, or ``done()``; ``on_end`` hears of each one that has."""
        while self._open and not done():
            for key, _ in self._selector.select(0.05):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                piece = connection.recv(_RECEIVE)
                if piece:
                    key.data.pieces.append((time.monotonic(), piece))
                    continue
                self._selector.unregister(connection)
                connection.close()
                self._open -= 1
                if on_end is not None:
                    on_end(key.data)

    def answers(self, bodies: Sequence[bytes]) -> list[Answer]:
        """Send all at once, wait for all. Errors: ``LoadError``."""
        streams = [self.start(body) for body in bodies]
        self.run()
        return [stream.answer() for stream in streams]

    def in_turn(self, queues: Sequence[Sequence[bytes]]) -> list[Answer]:
        """Every queue is a stream: its next request follows its last answer. Errors: ``LoadError``."""
        streams: list[Stream] = []
        waiting: dict[int, Iterator[bytes]] = {}

        def follow(queue: Iterator[bytes]) -> None:
            body = next(queue, None)
            if body is not None:
                streams.append(self.start(body))
                waiting[id(streams[-1])] = queue

        for queue in queues:
            follow(iter(queue))
        self.run(on_end=lambda stream: follow(waiting.pop(id(stream))))
        return [stream.answer() for stream in streams]

    def close(self) -> None:
        """Hang up on whatever still streams."""
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def _first_model(self) -> str:
        with socket.create_connection(self._address) as connection:
            connection.sendall(
                f"GET /v1/models HTTP/1.1\r\nHost: {self._address[0]}\r\nConnection: close\r\n\r\n".encode()
            )
            raw = b"".join(iter(lambda: connection.recv(_RECEIVE), b""))
        head, _, body = raw.partition(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise LoadError(raw.decode("utf-8", "replace")[:600])
        return str(json.loads(body)["data"][0]["id"])
