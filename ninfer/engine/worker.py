"""The queue in front of a serial engine: first in, first out, one request at a time.

Owns order, cancellation and the end of each request. Admission limits stand with the caller (the HTTP
server counts outstanding requests), so the queue itself is as long as its callers allow.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ninfer.engine.account import Account, Stage, Work
from ninfer.engine.event_account import EventAccount
from ninfer.engine.events import EngineEvent, Failed, Finished, LogRecord, RequestEvent, Started, Usage
from ninfer.engine.failures import classify, failed_event
from ninfer.engine.interface import SerialEngine
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.statistics import EngineResources, Occupancy, SchedulerGauges

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
        self._account = Account(clock)
        self._prefilling = False

    @property
    def resources(self) -> EngineResources:
        return self._engine.resources

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
            if not self._waiting:
                self._report_statistics()
                self._account.idle()
            self._changed.wait_for(lambda: self._stopped or bool(self._waiting))
            if self._stopped:
                return None
            self._running = self._waiting.popleft()
            return self._running

    def _serve(self, entry: _Entry) -> None:
        request = entry.request
        self._account.enter(Stage.BOUNDARY)
        try:
            self._publish_events(entry)
        except Exception as error:
            if classify(error) == "device":
                raise DeviceLost(str(error)) from error
            self._log_failure(error)
            self._report_statistics(running=False)
            self._publish(failed_event(request.id, error))

    def _publish_events(self, entry: _Entry) -> None:
        queue_s = self._clock() - entry.submitted_at
        events = iter(self._engine.generate(entry.request, entry.cancelled.is_set, queue_s))
        counted = EventAccount(self._account, entry.submitted_at)
        while (event := self._timed(events, counted)) is not None:
            event = counted.count(event)
            self._prefilling = counted.prefilling
            if isinstance(event, Finished | Failed):
                self._report_statistics(running=False)
                self._publish(event)
                return
            if self._account.due or isinstance(event, Started):
                self._report_statistics()
            self._publish(event)
        raise AssertionError("the engine ended a request without Finished or Failed")

    def _timed(self, events: Iterator[RequestEvent], counted: EventAccount) -> RequestEvent | None:
        """The next event; the engine's time for it counts as one unit."""
        self._account.enter(Stage.SUBMIT, Work.PREFILL if counted.prefilling else Work.DECODE)
        began = self._clock()
        event = next(events, None)
        self._account.launched(began, self._clock())
        return event

    def _report_statistics(self, running: bool | None = None) -> None:
        """Publish a snapshot; ``running`` False when the current request is at its end."""
        busy = self._running is not None if running is None else running
        prefilling = busy and self._prefilling
        gauges = SchedulerGauges(int(busy), int(prefilling), int(busy and not prefilling), len(self._waiting))
        occupancy = Occupancy(state_used_slots=int(busy), state_capacity_slots=1)
        self._publish(self._account.snapshot(gauges, occupancy))

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
