"""Which request's events go to which sink; every request ends exactly once.

Owns the registry that both hosts share. It knows neither processes nor queues.
"""

from __future__ import annotations

import threading

from ninfer.engine.events import Failed, Finished, RequestEvent
from ninfer.engine.interface import EventSink


class Outlet:
    """Delivers events to the sinks of open requests; safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sinks: dict[str, EventSink] = {}
        self._ended: tuple[str, str] | None = None

    def register(self, request_id: str, sink: EventSink) -> bool:
        """Open a request; False (and a ``Failed`` to the sink) after ``end_all``."""
        with self._lock:
            ended = self._ended
            if ended is None:
                assert request_id not in self._sinks, f"request id {request_id} is already in use"
                self._sinks[request_id] = sink
                return True
        sink(Failed(request_id, *ended))
        return False

    def deliver(self, event: RequestEvent) -> None:
        """Hand ``event`` to its sink; events of ended or unknown requests are dropped."""
        with self._lock:
            if isinstance(event, Finished | Failed):
                sink = self._sinks.pop(event.id, None)
            else:
                sink = self._sinks.get(event.id)
        if sink is not None:
            sink(event)

    def end_all(self, code: str, message: str) -> None:
        """Fail every open request and every later one; the first reason given stays."""
        with self._lock:
            if self._ended is None:
                self._ended = (code, message)
            sinks, self._sinks = self._sinks, {}
            ended = self._ended
        for request_id, sink in sinks.items():
            sink(Failed(request_id, *ended))

    @property
    def ended(self) -> bool:
        return self._ended is not None
