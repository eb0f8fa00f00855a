"""The structured request log: one JSON line per event, written by a thread of its own.

Owns the queue between the server and the disk, and the members that every line has. What the lines say
stands in ``log_events.py``, ``start_record.py`` and ``throughput.py``; their contract is
``spec/request_log.schema.json``.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ninfer.engine.request_work import SchedulingTransition
from ninfer.server.observe import log_events
from ninfer.server.observe.log_file import LogFile
from ninfer.server.observe.records import Done, PreparedRequest, Rejected, Terminal

_log = logging.getLogger("ninfer.server")
ARTIFACT_TYPE = "ninfer_serve_request_log"
SCHEMA_VERSION = 26
# Lines that may wait for a disk that hangs; a longer queue would only hold more memory.
QUEUE_LINES = 65536


class RequestLog:
    """A sink whose lines reach the file in the order of their events; nothing here waits for the disk."""

    def __init__(self, file: LogFile, wall_clock: Callable[[], float] = time.time) -> None:
        self._file = file
        self._clock = wall_clock
        self._instance = uuid.uuid4().hex
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._dropping = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._write, name="ninfer-request-log", daemon=True)

    def begin(self, record: Mapping[str, Any]) -> None:
        """Write the ``server_start`` record, first in this file and in every later one."""
        self._file.begin(self._line("server_start", record))
        self._thread.start()

    def close(self) -> None:
        """Write what waits and let the file go."""
        if self._thread.is_alive():
            self._lines.put(None)
            self._thread.join()
        self._file.close()

    def put(self, event: str, record: Mapping[str, Any]) -> None:
        """One more line."""
        if self._lines.qsize() >= QUEUE_LINES:
            if not self._dropping:
                _log.warning("request log: the disk does not keep up; records are lost")
            self._dropping = True
            return
        self._dropping = False
        with self._lock:  # lines are queued in the order of their timestamps
            self._lines.put(self._line(event, record))

    def started(self, request: PreparedRequest) -> None:
        self.put("request_start", log_events.request_start(request))

    def first_token(self, request: PreparedRequest, ttft_s: float) -> None:
        pass

    def rejected(self, rejected: Rejected) -> None:
        self.put("request_rejected", log_events.request_rejected(rejected))

    def ended(self, terminal: Terminal) -> None:
        if isinstance(terminal, Done):
            self.put("request_done", log_events.request_done(terminal))
        else:
            self.put("request_error", log_events.request_error(terminal))

    def scheduling(self, request: PreparedRequest, transition: SchedulingTransition) -> None:
        self.put("request_scheduling", log_events.request_scheduling(request, transition))

    def response_failed(self, request: PreparedRequest) -> None:
        """No second terminal: it is an operational event only."""

    def _line(self, event: str, record: Mapping[str, Any]) -> bytes:
        head = {
            "artifact_type": ARTIFACT_TYPE,
            "schema_version": SCHEMA_VERSION,
            "event": event,
            "timestamp_unix_ms": int(self._clock() * 1000),
            "server_instance_id": self._instance,
        }
        return msgspec.json.encode(head | dict(record)) + b"\n"

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            self._file.write(line)
