"""Reads request logs for tests: every line is held against the schema before a test looks at it."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from ninfer import spec

Line = dict[str, Any]


@functools.cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(spec.document("request_log.schema"))


def parse(data: bytes) -> list[Line]:
    """The lines of a log; the last one is whole."""
    assert data.endswith(b"\n") or not data, f"half a line: {data[-200:]!r}"
    lines = [json.loads(line) for line in data.splitlines()]
    for line in lines:
        check(line)
    return lines


def check(line: Line) -> None:
    faults = [
        f"{line['event']}/{'/'.join(map(str, error.absolute_path))}: {error.message}"
        for error in _validator().iter_errors(line)
    ]
    assert not faults, faults


class Log:
    """A request log that a server is writing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("--request-log-jsonl", str(self.path))

    def lines(self, event: str | None = None) -> list[Line]:
        """What is there now: whole lines only, since the writer may be at one."""
        data = self.path.read_bytes() if self.path.exists() else b""
        found = parse(data[: data.rfind(b"\n") + 1])
        return [line for line in found if event is None or line["event"] == event]

    @property
    def events(self) -> list[str]:
        """Names of all events but intervals, in order."""
        return [line["event"] for line in self.lines() if line["event"] != "throughput"]

    def wait(self, event: str, count: int = 1, timeout_s: float = 60.0) -> list[Line]:
        """The lines of ``event`` once there are ``count``."""

        def enough() -> list[Line] | None:
            found = self.lines(event)
            return found if len(found) >= count else None

        found: list[Line] = self.until(enough, timeout_s)
        return found

    def until(self, found: Callable[[], Any], timeout_s: float = 60.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (value := found()):
            assert time.monotonic() < deadline, self.lines()[-3:]
            time.sleep(0.01)
        return value

    @property
    def start(self) -> Line:
        return self.wait("server_start")[0]

    def done(self, count: int = 1) -> list[Line]:
        return self.wait("request_done", count)
