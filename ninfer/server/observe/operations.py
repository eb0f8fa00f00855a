"""Everything that watches one server, put together: sinks, metrics, intervals, and their start and end.

Owns the order: the request log begins with the server and ends after its last record; the last interval is
reported before it. What each part does is its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ninfer.engine.interface import EngineHost
from ninfer.server.observe.log_file import LogFile, check_not_artifact
from ninfer.server.observe.metrics import Identity, Metrics, RequestCounts
from ninfer.server.observe.observer import Observer, Sink
from ninfer.server.observe.reports import Reports
from ninfer.server.observe.request_log import RequestLog
from ninfer.server.observe.start_record import server_start
from ninfer.server.observe.throughput import Throughput, throughput
from ninfer.server.served_model import ServedModel


class Operations:
    """One per server; ``begin`` before it serves, ``close`` after its last answer."""

    def __init__(
        self,
        options: Mapping[str, Any],
        model: ServedModel,
        host: EngineHost,
        reports: Reports,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Errors: ``OptionError`` for a request log that cannot be kept."""
        self._options, self._model, self._host = options, model, host
        self._argv: Sequence[str] = getattr(options, "argv", ())
        self._clock = clock
        self._reports = reports
        self._log = open_log(options, model.path)
        counts = RequestCounts()
        sinks: list[Sink] = [counts, reports]
        if self._log is not None:
            sinks.insert(1, self._log)
        self.observer = Observer(sinks, clock)
        self.metrics = Metrics(host, _identity(options, model, host), counts)
        self._throughput: Throughput | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """The engine has loaded and requests may come."""
        self._throughput = Throughput(lambda: self._host.statistics, self._clock)
        if self._log is not None:
            self._log.begin(server_start(self._options, self._argv, self._model, self._host.resources))

    def watch(self) -> None:
        """Show the panel, and report every interval from now on, on the running event loop."""
        self._reports.begin(lambda: self._host.statistics.scheduler)
        if period_ms := self._options["log_stats_interval_ms"]:
            self._task = asyncio.get_running_loop().create_task(self._every(period_ms / 1000))

    def close(self) -> None:
        """Report the last interval and end the log."""
        if self._task is not None:
            self._task.cancel()
            self._report(final=True)
        self._reports.end()
        if self._log is not None:
            self._log.close()

    async def _every(self, period_s: float) -> None:
        while True:
            await asyncio.sleep(period_s)
            self._report()

    def _report(self, *, final: bool = False) -> None:
        assert self._throughput is not None
        span = self._throughput.next(final=final)
        if span is not None:
            if self._log is not None:
                self._log.put("throughput", throughput(span))
            self._reports.throughput(span)


def open_log(options: Mapping[str, Any], artifact: Path) -> RequestLog | None:
    """The request log that ``options`` ask for. Errors: ``OptionError``."""
    if options["request_log_jsonl"] is None:
        return None
    path = Path(options["request_log_jsonl"])
    limit_mib = options["request_log_max_mib"]
    keep = options["request_log_keep"]
    check_not_artifact(path, 0 if limit_mib is None else keep, artifact)
    return RequestLog(LogFile(path, None if limit_mib is None else limit_mib * 2**20, keep))


def _identity(options: Mapping[str, Any], model: ServedModel, host: EngineHost) -> Identity:
    labels = {
        "model": model.public_id,
        "architecture": model.config.architecture,
        "format": model.weights.dominant_format,
        "engine": options["engine"],
        "kv_format": options["kv_dtype"],
        "speculative_backend": options["spec"] or "none",
    }
    return Identity(labels, options["max_concurrency"], model.max_context)
