"""Real server processes for tests: started on a free port, watched through their own log, always ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from conformance.http.client import Client

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 60.0


class ServerProcess:
    """``ninfer-serve`` in its own process; a context manager that ends it.

    ``engine`` and ``limits`` go to ``launch.py``; ``arguments`` are the program's own.
    """

    def __init__(
        self,
        directory: Path,
        arguments: Sequence[str],
        *,
        engine: Mapping[str, Any] | None = None,
        limits: Mapping[str, float] | None = None,
        port: int | None = 0,
    ) -> None:
        config = json.dumps({"engine": engine or {}, "limits": limits or {}})
        where = () if port is None else ("--port", str(port))
        self._log = directory / f"server-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.server.launch", config, *where, *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def wait_ready(self) -> Client:
        """A client for the address that the readiness line names."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while (match := re.search(r"listening on (http://\S+)", self.log)) is None:
            assert self.process.poll() is None, f"the server ended while it started:\n{self.log}"
            assert time.monotonic() < deadline, f"no readiness line:\n{self.log}"
            time.sleep(0.02)
        return Client(match[1])

    def wait_for(self, text: str) -> None:
        """Until the log has ``text``."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while text not in self.log:
            assert self.process.poll() is None, f"the server ended:\n{self.log}"
            assert time.monotonic() < deadline, f"no {text!r}:\n{self.log}"
            time.sleep(0.02)

    def engine_pid(self) -> int:
        """The engine process: the server's only child."""
        pid = self.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and give the exit status."""
        self.process.send_signal(number)
        return self.process.wait(30)

    def wait_end(self) -> int:
        return self.process.wait(START_TIMEOUT_S)


def wait_queued(client: Client, count: int) -> None:
    """Until so many requests wait for the engine; one that runs and goes on makes it tell."""
    line = f"\nninfer_requests_waiting {count:.1f}\n".encode()
    deadline = time.monotonic() + START_TIMEOUT_S
    while line not in client.get("/metrics").body:
        assert time.monotonic() < deadline, f"no {count} requests in the queue"
        time.sleep(0.02)


def exists(pid: int) -> bool:
    """Whether a process is still there and not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_gone(pid: int, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while exists(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
