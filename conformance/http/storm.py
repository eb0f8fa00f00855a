"""Many clients at once, some of which leave in the middle: what they are answered, and what stays behind.

Owns the load and the measures; ``test_storm.py`` says how much of both.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from conformance.http.checks import World
from conformance.http.protocols import PROTOCOLS

# What a server under load may say instead of an answer.
NAMED = ("server_overloaded", "request_queue_timeout")
_WORDS = ("tide", "harbour", "copy", "sum", "list", "wind", "north", "seven", "letter", "stone")
_LEAVING_S = 0.4


@dataclass(frozen=True, slots=True)
class Storm:
    """``requests`` from ``clients`` at once; the share ``leaving`` goes before its answer is whole."""

    clients: int
    requests: int
    leaving: float
    seed: int

    def blow(self, world: World) -> Counter[str]:
        """How the requests ended. Fails at an answer that is none of the protocol's and no named refusal."""
        with ThreadPoolExecutor(self.clients) as pool:
            return Counter(pool.map(lambda number: self._one(world, number), range(self.requests)))

    def _one(self, world: World, number: int) -> str:
        rng = random.Random(f"{self.seed} {number}")
        protocol = PROTOCOLS[rng.choice(sorted(PROTOCOLS))]
        words = " ".join(rng.choices(_WORDS, k=rng.choice((3, 40, 200))))
        tool = "look" if rng.random() < 0.3 else None
        members = protocol.question(words, rng.choice((1, 8, 32)), tool)
        body = protocol.body(world.model, {**members, "temperature": rng.choice((0, 1))})
        streams = rng.random() < 0.5
        if streams:
            body = protocol.streamed(body)
        if rng.random() < self.leaving:
            _leave(world.client.base_url, protocol.path, json.dumps(body).encode(), rng)
            return "left"
        answer = world.client.request("POST", protocol.path, body)
        if answer.status != 200:
            code, _, _ = protocol.check_error(answer.json)
            assert code in NAMED, (answer.status, code)
            assert answer.status == protocol.status_of(code)
            return code
        if streams:
            protocol.check_stream(protocol.read_stream(answer.body))
        else:
            protocol.check_whole(answer.json)
        return "answered"


def _leave(url: str, path: str, body: bytes, rng: random.Random) -> None:
    """Send a request, sometimes only its beginning, wait a moment and go, politely or not."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    head = f"POST {path} HTTP/1.1\r\nHost: storm\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    sent = head + (body if rng.random() < 0.9 else body[: len(body) // 2])
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as client:
        client.sendall(sent)
        client.settimeout(max(0.001, rng.uniform(0, _LEAVING_S)))
        with suppress(TimeoutError, ConnectionError):
            client.recv(rng.choice((1, 65536)))
        if rng.random() < 0.5:  # a reset instead of an end
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def resident_bytes(pid: int) -> int:
    """Memory of a process and its children."""
    total = 0
    pending = [pid]
    while pending:
        process = pending.pop()
        with suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{process}/status").read_text()
            total += 1024 * int(status.partition("VmRSS:")[2].split()[0])
            for task in Path(f"/proc/{process}/task").iterdir():
                pending += map(int, (task / "children").read_text().split())
    return total


def settle(world: World, timeout_s: float = 60.0) -> None:
    """Until a request is answered at once: those that left are gone."""
    deadline = time.monotonic() + timeout_s
    while True:
        body = PROTOCOLS["chat"].body(world.model, {"max_tokens": 1})
        if world.client.request("POST", PROTOCOLS["chat"].path, body).status == 200:
            return
        assert time.monotonic() < deadline, "the server does not get free again"
        time.sleep(0.2)
