"""Servers of ours for the suite: started on a free port, known by their readiness line, always ended."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
_START_S = 120.0
_STOP_S = 30.0


class Server:
    """A running ``ninfer-serve``; ``log`` is what it said so far.

    Errors: ``AssertionError`` with the log when it does not get ready or does not end well.
    """

    def __init__(self, directory: Path, options: Sequence[str] = (), script: Path | None = None) -> None:
        """``script`` puts an engine that plays it behind the server, else the bundled model answers."""
        program = ["ninfer.server.main"] if script is None else ["conformance.http.scripted", str(script)]
        self._log = directory / f"server-{time.monotonic_ns()}.log"
        with self._log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *program, "--port", "0", *options],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )
        try:
            self.base_url = self._address()
        except BaseException:
            self.process.kill()
            raise

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def stop(self) -> None:
        """End it as an operator would."""
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(_STOP_S) == 0, self.log
        finally:
            with suppress(ProcessLookupError):
                self.process.kill()

    def _address(self) -> str:
        deadline = time.monotonic() + _START_S
        while (match := re.search(r"listening on (http://\S+)", self.log)) is None:
            assert self.process.poll() is None, f"the server ended while it started:\n{self.log}"
            assert time.monotonic() < deadline, f"no readiness line:\n{self.log}"
            time.sleep(0.05)
        return match[1]
