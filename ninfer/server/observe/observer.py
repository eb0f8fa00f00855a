"""Follows each generation request through the server and tells the sinks what became of it.

Owns the numbers of requests, their clock and the rule that a prepared request has exactly one terminal
record. Sinks are called from whichever thread brings the news; they return at once and guard their own state.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol

from ninfer.engine.events import Delta, Failed, Finished, RequestEvent, Started
from ninfer.engine.interface import EventSink
from ninfer.engine.request_work import RequestWork, SchedulingTransition
from ninfer.output.tools import ToolParse
from ninfer.server.observe.records import (
    BudgetReport,
    Done,
    Errored,
    PreparedRequest,
    Rejected,
    RequestShape,
    SentError,
    Terminal,
)

_log = logging.getLogger("ninfer.server")
AsSent = Callable[[Exception], SentError]
Stop = Literal["none", "output_limit", "context_capacity", "stop_token", "stop_string", "cancelled"]


class Sink(Protocol):
    """What a consumer of records implements; every method returns at once."""

    def started(self, request: PreparedRequest) -> None: ...

    def first_token(self, request: PreparedRequest, ttft_s: float) -> None: ...

    def rejected(self, rejected: Rejected) -> None: ...

    def ended(self, terminal: Terminal) -> None: ...

    def scheduling(self, request: PreparedRequest, transition: SchedulingTransition) -> None: ...

    def response_failed(self, request: PreparedRequest) -> None: ...


class Observer:
    """One per server. ``clock`` is monotonic, in seconds."""

    def __init__(self, sinks: Sequence[Sink] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self.sinks = tuple(sinks)
        self.clock = clock
        self._numbers = itertools.count(1)

    @contextmanager
    def watching(self, http_id: str, path: str, as_sent: AsSent) -> Iterator[RequestObservation]:
        """The observation of one HTTP exchange; without ``preparing`` nothing is recorded of it.

        ``as_sent`` tells how its protocol writes an error. An exception that leaves the block after the
        generation's outcome is a response failure.
        """
        observation = RequestObservation(self, http_id, path, as_sent)
        try:
            yield observation
        except BaseException:
            observation.response_failed()
            raise
        finally:
            observation.close()

    def next_number(self) -> int:
        return next(self._numbers)


class RequestObservation:
    """One exchange's news, in the order of its life; ``close`` when its handler leaves."""

    def __init__(self, observer: Observer, http_id: str, path: str, as_sent: AsSent) -> None:
        self._observer = observer
        self._as_sent = as_sent
        self.http_id = http_id
        self.path = path
        self._lock = threading.Lock()
        self._shape: RequestShape | None = None
        self._number = 0
        self._began = self._submitted = 0.0
        self._request: PreparedRequest | None = None
        self._started: Started | None = None
        self._ttft_s: float | None = None
        self._token_ids: list[int] = []
        self._outcome: Finished | None = None
        self._left = False
        self._terminal = False
        self._told_response_failure = False

    # --- preparation, in a worker thread -----------------------------------------------------------

    def preparing(self, shape: RequestShape) -> None:
        """The body is valid and preparation begins: the request gets its number."""
        self._shape = shape
        self._number = self._observer.next_number()
        self._began = self._observer.clock()

    @property
    def number(self) -> int:
        return self._number

    @property
    def shape(self) -> RequestShape:
        assert self._shape is not None, "preparation has not begun"
        return self._shape

    @property
    def elapsed_s(self) -> float:
        """Seconds since preparation began."""
        return self._observer.clock() - self._began

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """What leaves this block as an exception is a failed preparation."""
        try:
            yield
        except Exception as error:
            self.refused(error)
            raise

    def refused(self, error: Exception) -> None:
        """Preparation failed."""
        if self._shape is None or self._request is not None:
            return
        rejected = Rejected(self._number, self.http_id, self._shape, self._as_sent(error))
        self._tell(lambda sink: sink.rejected(rejected))

    def prepared(self, request: PreparedRequest) -> None:
        """The request is ready for the engine."""
        self._submitted = self._observer.clock()
        with self._lock:
            self._request = request
            left = self._left
        self._tell(lambda sink: sink.started(request))
        if left:
            self._fail(None, "the client left before generation")

    # --- generation --------------------------------------------------------------------------------

    def sink(self, reader: EventSink) -> EventSink:
        """Where the engine's events go: here, and to the answer's reader what concerns an answer."""

        def take(event: RequestEvent) -> None:
            self.event(event)
            if not isinstance(event, SchedulingTransition):
                reader(event)

        return take

    def event(self, event: RequestEvent) -> None:
        """One event of the engine, from its delivering thread."""
        request = self._request
        if request is None:
            return
        if isinstance(event, Started):
            self._started = event
        elif isinstance(event, Delta):
            self._token_ids.extend(event.token_ids)
            if self._ttft_s is None:
                self._first_token(request, self._before_engine_s + self._queue_s + event.prompt_s)
        elif isinstance(event, Finished):
            self._finish(request, event)
        elif isinstance(event, Failed):
            self._fail(event.code, event.message)
        elif isinstance(event, SchedulingTransition):
            transition = event
            self._tell(lambda sink: sink.scheduling(request, transition))

    def _first_token(self, request: PreparedRequest, ttft_s: float) -> None:
        self._ttft_s = ttft_s
        self._tell(lambda sink: sink.first_token(request, ttft_s))

    def _finish(self, request: PreparedRequest, finished: Finished) -> None:
        if self._started is None:
            self._fail(None, "cancelled before admission")
            return
        if finished.stop_token_id is not None:
            self._token_ids.append(finished.stop_token_id)
        if finished.usage.completion_tokens and self._ttft_s is None:
            self._first_token(request, self._before_engine_s + finished.usage.time_to_first_token_s)
        with self._lock:
            self._outcome = finished
            left = self._left
        if left or finished.reason == "cancelled":
            self.settled()

    def settled(self, tool_parse: ToolParse | None = None) -> None:
        """The answer was read to its end; ``tool_parse`` says what its tool markup came to."""
        request, finished = self._request, self._outcome
        if request is None or finished is None or not self._take_terminal():
            return
        done = Done(
            request=request,
            reason=finished.reason,
            stop=_stop(finished, request),
            usage=finished.usage,
            work=finished.work or RequestWork(queue_s=self._queue_s),
            token_ids=tuple(self._token_ids),
            ttft_s=self._ttft_s,
            total_s=self.elapsed_s,
            reuse_path=_reuse_path(finished),
            tool_parse=tool_parse or ToolParse(),
            budget=_budget(finished),
        )
        self._tell(lambda sink: sink.ended(done))

    def response_failed(self) -> None:
        """The generation has an outcome, but its answer could not be given."""
        request = self._request
        if request is not None and self._outcome is not None and not self._told_response_failure:
            self._told_response_failure = True
            self._tell(lambda sink: sink.response_failed(request))

    def close(self) -> None:
        """The handler leaves, whatever the reason; an outcome still to come is recorded when it comes."""
        with self._lock:
            self._left = True
            waiting = self._outcome is not None
        if waiting:
            self.settled()

    def _fail(self, code: str | None, message: str) -> None:
        request = self._request
        assert request is not None
        if not self._take_terminal():
            return
        waited = self._queue_s if self._started is not None else self._observer.clock() - self._submitted
        errored = Errored(request, code, message, self.elapsed_s, waited)
        self._tell(lambda sink: sink.ended(errored))

    # --- helpers -----------------------------------------------------------------------------------

    @property
    def _before_engine_s(self) -> float:
        return self._submitted - self._began

    @property
    def _queue_s(self) -> float:
        return 0.0 if self._started is None else self._started.queue_s

    def _take_terminal(self) -> bool:
        """Whether the caller is the first that ends this request."""
        with self._lock:
            first, self._terminal = not self._terminal, True
        return first

    def _tell(self, what: Callable[[Sink], None]) -> None:
        """A sink that fails is logged; requests never suffer from being watched."""
        for sink in self._observer.sinks:
            try:
                what(sink)
            except Exception:
                _log.exception("an observer failed")


def _stop(finished: Finished, request: PreparedRequest) -> Stop:
    if finished.reason == "cancelled":
        return "cancelled"
    if finished.reason == "length":
        return "context_capacity" if request.context_bound else "output_limit"
    return "stop_token" if finished.stop_string is None else "stop_string"


def _reuse_path(finished: Finished) -> str:
    path: str = getattr(finished.usage, "prefix_reuse_path", "root")
    return path


def _budget(finished: Finished) -> BudgetReport:
    drawn, inserted = finished.model_thinking_tokens, finished.control_tokens
    return BudgetReport(finished.usage.reasoning_tokens if drawn is None else drawn, inserted, inserted > 0)
