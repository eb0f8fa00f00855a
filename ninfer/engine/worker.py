"""The queue in front of a serial engine: first in, first out, one request at a time.

Owns order, cancellation and the end of each request. Admission limits stand with the caller (the HTTP
server counts outstanding requests), so the queue itself is as long as its callers allow.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ninfer.engine.events import EngineEvent, Failed, Finished, LogRecord, Usage
from ninfer.engine.failures import classify, failed_event
from ninfer.engine.interface import SerialEngine
from ninfer.engine.requests import GenerationRequest

Publish = Callable[[EngineEvent], None]


@dataclass(slots=True)
class _Entry:
    request: GenerationRequest
    submitted_at: float
    cancelled: threading.Event = field(default_factory=threading.Event)


class DeviceLost(Exception):
    """The engine's device cannot be used again in this process; the message says why."""


class SerialWorker:
    """Runs requests of any thread on the one thread that calls ``run``."""

    def __init__(
        self, engine: SerialEngine, publish: Publish, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._publish = publish
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[_Entry] = deque()
        self._running: _Entry | None = None
        self._stopped = False

    def submit(self, request: GenerationRequest) -> None:
        """Append to the queue; after ``stop`` it is dropped (the outlet has ended it)."""
        with self._changed:
            if not self._stopped:
                self._waiting.append(_Entry(request, self._clock()))
                self._changed.notify()

    def cancel(self, request_id: str) -> None:
        """End a waiting request at once and a running one after its current step."""
        with self._changed:
            if self._running is not None and self._running.request.id == request_id:
                self._running.cancelled.set()
                return
            entry = next((entry for entry in self._waiting if entry.request.id == request_id), None)
            if entry is None:
                return
            self._waiting.remove(entry)
        self._publish(_never_started(request_id))

    def stop(self) -> None:
        """Drop the queue, cancel the running request and make ``run`` return."""
        with self._changed:
            self._stopped = True
            self._waiting.clear()
            if self._running is not None:
                self._running.cancelled.set()
            self._changed.notify()

    def run(self) -> None:
        """Serve until ``stop``. Errors: ``DeviceLost``."""
        while (entry := self._next()) is not None:
            self._serve(entry)

    def _next(self) -> _Entry | None:
        with self._changed:
            self._running = None
            self._changed.wait_for(lambda: self._stopped or bool(self._waiting))
            if self._stopped:
                return None
            self._running = self._waiting.popleft()
            return self._running

    def _serve(self, entry: _Entry) -> None:
        request = entry.request
        try:
            self._publish_events(entry)
        except Exception as error:
            if classify(error) == "device":
                raise DeviceLost(str(error)) from error
            self._log_failure(error)
            self._publish(failed_event(request.id, error))

    def _publish_events(self, entry: _Entry) -> None:
        queue_s = self._clock() - entry.submitted_at
        for event in self._engine.generate(entry.request, entry.cancelled.is_set, queue_s):
            self._publish(event)
            if isinstance(event, Finished | Failed):
                return
        raise AssertionError("the engine ended a request without Finished or Failed")

    def _log_failure(self, error: Exception) -> None:
        kind = classify(error)
        if kind == "request":
            return
        if kind == "memory":
            record = LogRecord("warning", f"worker out of memory: {error} - recovering")
        else:
            trace = "".join(traceback.format_exception(error)).rstrip()
            record = LogRecord("error", f"worker recovering from a failed request\n{trace}")
        self._publish(record)


def _never_started(request_id: str) -> Finished:
    usage = Usage(
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        reasoning_tokens=0,
        prefill_s=0.0,
        decode_s=0.0,
        time_to_first_token_s=0.0,
    )
    return Finished(request_id, "cancelled", usage)
