"""A server on a pseudo-terminal: its screen is followed while it runs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from conformance.http.client import Client
from tests.server.observe.screen import Screen
from tests.server.processes import ROOT


class TerminalServer:
    """``ninfer-serve`` whose standard streams are a terminal of ``columns``; use as a context manager."""

    def __init__(
        self,
        arguments: Sequence[str],
        engine: Mapping[str, Any],
        columns: int = 200,
        term: str = "xterm-256color",
    ) -> None:
        self.screen = Screen(columns, rows=40)
        self.output = ""
        self._master, slave = pty.openpty()
        self._size(slave, columns)
        config = json.dumps({"engine": engine, "limits": {}})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.launch", config, "--port", "0", *arguments],
            cwd=ROOT,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=os.environ | {"TERM": term},
            start_new_session=True,
        )
        os.close(slave)
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> TerminalServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5)
        with contextlib.suppress(OSError):
            os.close(self._master)

    def _read(self) -> None:
        while True:
            try:
                ready, _, _ = select.select([self._master], [], [], 0.2)
                data = os.read(self._master, 65536) if ready else None
            except (OSError, ValueError):  # the other end is closed
                return
            if data:
                text = data.decode(errors="replace").replace("\r\n", "\n")
                with self._lock:
                    self.output += text
                    self.screen.feed(text)
            elif self.process.poll() is not None:
                return

    def resize(self, columns: int) -> None:
        with self._lock:
            self.screen.columns = columns
        self._size(self._master, columns)
        self.process.send_signal(signal.SIGWINCH)

    @staticmethod
    def _size(terminal: int, columns: int) -> None:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    @property
    def lines(self) -> list[str]:
        """Every line so far, without the empty one where the cursor may stand."""
        with self._lock:
            lines = self.screen.lines
        return lines[:-1] if lines and not lines[-1] else lines

    @property
    def panel(self) -> list[str]:
        """The pinned rows with the panel's title first; empty while there is none."""
        lines = self.lines
        titles = [index for index, line in enumerate(lines) if re.match(r"\d+ (completed|compl)", line)]
        return lines[titles[-1] :] if titles else []

    def until(self, true: Callable[[], Any], timeout_s: float = 60.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (value := true()):
            assert time.monotonic() < deadline, "\n".join(self.lines)
            time.sleep(0.02)
        return value

    def wait_ready(self) -> Client:
        def found() -> re.Match[str] | None:
            return re.search(r"listening on (http://\S+)\n", self.output)

        match: re.Match[str] = self.until(found)
        return Client(match[1])

    def wait_end(self) -> int:
        status = self.process.wait(30)
        self._reader.join(10)
        return status
