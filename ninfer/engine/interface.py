"""The one interface through which servers, the CLI and tests drive any engine.

An engine process (``host.py``) and an in-process host for tests implement it; the HTTP server and
``ninfer`` know nothing else of engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from ninfer.engine.events import RequestEvent
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.statistics import EngineResources, EngineStatistics

EventSink = Callable[[RequestEvent], None]


class EngineHost(Protocol):
    """Submits requests to an engine and delivers their events.

    Sinks are called from the host's own thread, in order, and must not block; ``submit`` and ``close`` may
    call one with a ``Failed`` themselves. After the engine is gone every request, running, queued or new,
    ends with ``Failed(code="engine_unavailable")``; after ``close`` with ``service_unavailable``.
    """

    @property
    def available(self) -> bool:
        """Whether work can be accepted (``GET /health``)."""
        ...

    @property
    def statistics(self) -> EngineStatistics:
        """The engine's latest snapshot, which includes every request whose end a sink has got."""
        ...

    @property
    def resources(self) -> EngineResources:
        """What the engine holds; known once it has loaded."""
        ...

    def submit(self, request: GenerationRequest, sink: EventSink) -> None:
        """Queue a request; exactly one ``Finished`` or ``Failed`` will reach ``sink``."""
        ...

    def cancel(self, request_id: str) -> None:
        """Ask to stop a request; unknown or finished ids are ignored."""
        ...

    def close(self) -> None:
        """End every request with ``service_unavailable`` and release the engine."""
        ...


class Worker(Protocol):
    """What an engine process runs: takes commands of any thread, publishes events from its own.

    After a request's ``Finished`` or ``Failed`` nothing more is published of it. ``run`` returns after
    ``stop``; an exception it raises ends the engine.
    """

    @property
    def resources(self) -> EngineResources: ...

    def submit(self, request: GenerationRequest) -> None: ...

    def cancel(self, request_id: str) -> None: ...

    def stop(self) -> None: ...

    def run(self) -> None: ...


class SerialEngine(Protocol):
    """An engine that answers one request at a time; ``worker.py`` queues in front of it.

    ``generate`` yields ``Started``, then ``Progress`` and ``Delta`` events, then exactly one ``Finished``.
    It polls ``cancelled`` between tokens and prefill pieces. An exception it raises fails this request only.
    """

    @property
    def name(self) -> str: ...

    @property
    def resources(self) -> EngineResources: ...

    def generate(
        self, request: GenerationRequest, cancelled: Callable[[], bool], queue_s: float
    ) -> Iterator[RequestEvent]: ...
