"""An engine host without a process, for tests and tools: the same interface, one thread.

A lost device or a bug in the worker ends every request with ``engine_unavailable``, as the death of an
engine process would.
"""

from __future__ import annotations

import logging
import threading

from ninfer.engine.events import EngineEvent, LogRecord, RequestEvent
from ninfer.engine.interface import EventSink, SerialEngine
from ninfer.engine.outlet import Outlet
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.statistics import EngineResources, EngineStatistics
from ninfer.engine.worker import SerialWorker

_log = logging.getLogger("ninfer.engine")


class InProcessHost:
    """An ``EngineHost`` over ``engine`` in this process."""

    _statistics = EngineStatistics()

    def __init__(self, engine: SerialEngine) -> None:
        self._outlet = Outlet()
        self._worker = SerialWorker(engine, self._publish)
        self._thread = threading.Thread(target=self._run, name="ninfer-engine", daemon=True)
        self._thread.start()

    @property
    def available(self) -> bool:
        return not self._outlet.ended

    @property
    def statistics(self) -> EngineStatistics:
        return self._statistics

    @property
    def resources(self) -> EngineResources:
        return self._worker.resources

    def submit(self, request: GenerationRequest, sink: EventSink) -> None:
        if self._outlet.register(request.id, sink):
            self._worker.submit(request)

    def cancel(self, request_id: str) -> None:
        self._worker.cancel(request_id)

    def close(self) -> None:
        self._outlet.end_all("service_unavailable", "The server is stopping.")
        self._worker.stop()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._worker.run()
        except Exception as error:
            _log.exception("the engine ended")
            self._outlet.end_all("engine_unavailable", f"The engine ended: {type(error).__name__}.")

    def _publish(self, event: EngineEvent) -> None:
        if isinstance(event, LogRecord):
            _log.log(logging.getLevelNamesMapping()[event.level.upper()], "engine | %s", event.message)
            return
        if isinstance(event, EngineStatistics):
            self._statistics = event
            return
        assert isinstance(event, RequestEvent), f"a worker never publishes {type(event).__name__}"
        self._outlet.deliver(event)
