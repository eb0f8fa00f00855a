"""Console records and the statistics panel: what a person who watches the server sees.

Owns which news becomes a record, at which level, and when the panel changes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ninfer.engine.request_work import SchedulingTransition
from ninfer.engine.statistics import SchedulerGauges
from ninfer.server.observe import console_lines
from ninfer.server.observe.console import Console, Row
from ninfer.server.observe.panel import Panel
from ninfer.server.observe.records import Done, PreparedRequest, Rejected, Terminal
from ninfer.server.observe.throughput import Interval

_log = logging.getLogger("ninfer.server")


class Reports:
    """A sink for people. ``panel`` None: records only. ``colours`` apply to statistics on a terminal."""

    def __init__(
        self, console: Console | None = None, panel: Panel | None = None, colours: bool = False
    ) -> None:
        self._console = console
        self._panel = panel
        self._colours = colours
        self._lock = threading.Lock()
        self._gauges: Callable[[], SchedulerGauges] = SchedulerGauges

    def begin(self, gauges: Callable[[], SchedulerGauges]) -> None:
        """The server is ready; the panel appears."""
        self._gauges = gauges
        self._draw()

    def end(self) -> None:
        """Nothing follows; the panel keeps its last figures."""
        self._draw()

    def started(self, request: PreparedRequest) -> None:
        _log.info(console_lines.started(request))
        self._draw()

    def first_token(self, request: PreparedRequest, ttft_s: float) -> None:
        pass

    def rejected(self, rejected: Rejected) -> None:
        if self._panel is not None:
            self._panel.count("rejected")
        _log.info(console_lines.rejected(rejected))
        self._draw()

    def ended(self, terminal: Terminal) -> None:
        if self._panel is not None:
            self._panel.add(terminal)
        if isinstance(terminal, Done):
            _log.info(console_lines.ended(terminal))
            if (recovered := console_lines.tool_parse(terminal)) is not None:
                _log.info(recovered)
        else:
            _log.info(console_lines.failed(terminal))
        self._draw()

    def scheduling(self, request: PreparedRequest, transition: SchedulingTransition) -> None:
        _log.debug("req#%d %s", request.number, transition.transition)

    def response_failed(self, request: PreparedRequest) -> None:
        _log.info("req#%d the answer could not be given", request.number)

    def throughput(self, span: Interval) -> None:
        _log.info(console_lines.throughput(span), extra={"statistics": True})
        self._draw()

    def _draw(self) -> None:
        if self._panel is None or self._console is None:
            return
        with self._lock:
            rows = self._panel.rows(self._gauges())
            self._console.pin([Row(text, colour if self._colours else None) for text, colour in rows])
