"""What the HTTP side costs by itself: events per second and time to the first byte over a scripted engine.

    python -m tools.bench.streaming                     # medians of five; exits 1 below the targets
    python -m tools.bench.streaming --tokens 5000 --repetitions 3

The engine emits a whole answer at once, one token an event, so that only the server limits the stream.
Server and engine process share one core, the client has another. Events are counted as they arrive: the
server may join the tokens of a reader that falls behind, and what it joins counts once. The first byte is
measured alone, with a prompt of 1 KB.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from ninfer import bundled
from tools.first_answer import free_port, wait_until_ready

EVENTS_PER_S = 3000.0
FIRST_BYTE_MS = 5.0
_READY_S = 60.0
_LAUNCH = (
    "import sys; from ninfer.cli.parser import run; from ninfer.server.main import serve; "
    "engine = {'engine': 'scripted', 'script': sys.argv[1]}; "
    "sys.exit(run('ninfer-serve', sys.argv[2:], lambda options: serve(options, engine)))"
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=20_000, help="of one answer")
    parser.add_argument("--first-bytes", type=int, default=40, help="requests of one repetition")
    parser.add_argument("--repetitions", type=int, default=5)
    chosen = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory, scripted_server(Path(directory)) as url:
        first_byte_ms(url)  # connections, caches and the first prompt of its kind
        rates, firsts = [], []
        for _ in range(chosen.repetitions):
            rates.append(events_per_second(url, chosen.tokens))
            firsts.append(statistics.median(first_byte_ms(url) for _ in range(chosen.first_bytes)))
    rate, first = statistics.median(rates), statistics.median(firsts)
    print(f"streamed events/s: {rate:.0f} (target {EVENTS_PER_S:.0f}; {min(rates):.0f}..{max(rates):.0f})")
    print(f"first byte of a 1 KB prompt: {first:.2f} ms (target {FIRST_BYTE_MS:.0f}; "
          f"{min(firsts):.2f}..{max(firsts):.2f})")  # fmt: skip
    return 0 if rate >= EVENTS_PER_S and first <= FIRST_BYTE_MS else 1


@contextmanager
def scripted_server(directory: Path) -> Iterator[str]:
    """A server whose engine answers at once, on one core of this process's; the rest stays ours."""
    cores = sorted(os.sched_getaffinity(0))
    script = directory / "script.json"
    script.write_text(json.dumps({"default": {"steps": [{"text": "word "}], "repeat": 1_000_000}}))
    port = free_port()
    options = [str(bundled.path()), "--port", str(port), "--model-id", "m", "--max-context", "32768",
               "--no-thinking"]  # fmt: skip
    command = [sys.executable, "-c", _LAUNCH, str(script), *options]
    with (directory / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            os.sched_setaffinity(process.pid, cores[:1])
            if len(cores) > 1:
                os.sched_setaffinity(0, cores[1:])
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url, process, _READY_S)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            os.sched_setaffinity(0, cores)


def events_per_second(url: str, tokens: int) -> float:
    """Events of one stream over the time from its first byte to its last."""
    with sent(url, "go", tokens) as sock:
        received = [sock.recv(1 << 20)]
        began = time.perf_counter()
        while b"[DONE]" not in received[-1][-64:]:
            received.append(sock.recv(1 << 20))
        seconds = time.perf_counter() - began
    return b"".join(received).count(b"data: {") / seconds


def first_byte_ms(url: str) -> float:
    """Milliseconds from a request of 1 KB to the first byte of its stream."""
    began = time.perf_counter()
    with sent(url, "x" * 1024, 1) as sock:
        sock.recv(1)
        found = 1000 * (time.perf_counter() - began)
        while sock.recv(1 << 16):
            pass
    return found


@contextmanager
def sent(url: str, content: str, max_tokens: int) -> Iterator[socket.socket]:
    """A connection on which a streamed request was sent; the server closes it behind the answer."""
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": content}], "stream": True,
         "max_tokens": max_tokens}
    ).encode()  # fmt: skip
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}"
    )
    where = urlsplit(url)
    with socket.create_connection((where.hostname, where.port), timeout=60) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(head.encode() + b"\r\n\r\n" + body)
        yield sock


if __name__ == "__main__":
    sys.exit(main())
