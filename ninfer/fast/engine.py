"""The fast engine's worker: one thread that owns scheduler, program and every request in flight.

Others hand it commands and read the events it publishes. A unit of work (a round, a prefill chunk) commits or
fails whole; a failed unit fails the requests in it and the worker goes on with its queue.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial

from ninfer.engine.account import Account, Stage
from ninfer.engine.events import EngineEvent, Failed, LogRecord
from ninfer.engine.failures import FailureKind, classify, failed_event
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.settings import CacheSettings
from ninfer.engine.statistics import EngineResources
from ninfer.engine.worker import DeviceLost
from ninfer.errors import EngineError
from ninfer.fast.active import Active, TokenBytes, prepare
from ninfer.fast.coalescing import Coalescing
from ninfer.fast.draft.speculation import RequestDraft, Speculation
from ninfer.fast.gauges import cache_counters, gauges, occupancy
from ninfer.fast.prefix.cache import PrefixCache
from ninfer.fast.prefix.limits import CacheLimits, resolve_limits
from ninfer.fast.program.program import Program
from ninfer.fast.residents import Residents
from ninfer.fast.schedule.gaps import RoundGaps
from ninfer.fast.schedule.scheduler import Phase
from ninfer.fast.transitions import Transitions
from ninfer.fast.units import Failures, Units

Publish = Callable[[EngineEvent], None]

# Contract "How failures end": this many recoveries in a row are survived, the next failure ends the engine.
RECOVERIES = 8


class EngineEnded(Exception):
    """The worker cannot go on; the message says why."""


class FastWorker:
    """Implements ``Worker`` over a ``Program``.

    ``queue_limit_s`` is the longest a request may wait for admission; ``clock`` is monotonic, in seconds.
    ``resources`` says what was taken at the start; ``speculation`` drafts for decode rounds. ``limits`` are
    the prefix cache's (None: it is off), ``page_bytes`` the size of a KV page; ``report_scheduling``
    publishes pauses and ways back.
    """

    def __init__(
        self,
        program: Program,
        token_bytes: TokenBytes,
        publish: Publish,
        queue_limit_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        resources: EngineResources | None = None,
        speculation: Speculation | None = None,
        limits: CacheLimits | None = None,
        page_bytes: int = 0,
        report_scheduling: bool = False,
    ) -> None:
        self.resources = resources or EngineResources()
        self._program, self._token_bytes = program, token_bytes
        self._publish, self._clock = publish, clock
        self._queue_limit_s = queue_limit_s
        self._account = Account(clock)
        chosen = limits or resolve_limits(CacheSettings(reuse=False), 1, program.options.prefill_chunk)
        self._cache = PrefixCache(program.memory, chosen, page_bytes, lagging=speculation is not None)
        self._residents = Residents(
            program,
            self._cache,
            self._account,
            publish,
            clock,
            Coalescing(self._cache.costs, queue_limit_s, chosen.reuse),
            Transitions(self._account, publish, clock, report_scheduling),
            speculation,
            self._report_statistics,
        )
        self._scheduler = self._residents.scheduler
        self._gaps = RoundGaps(lambda line: publish(LogRecord("debug", line)))
        self._units = Units(
            program,
            self._residents,
            self._account,
            self._gaps,
            publish,
            clock,
            self._report_statistics,
            speculation,
        )
        self._speculation = speculation
        self._drafts: dict[str, RequestDraft] = {}
        self._changed = threading.Condition()
        self._commands: deque[tuple[float, GenerationRequest | str]] = deque()
        self._stopped = False
        self._recoveries = 0

    # --- any thread --------------------------------------------------------------------------------

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request; after ``stop`` it is dropped (the outlet has ended it)."""
        room = self._program.options.max_context - len(request.tokens) // 4
        if self._speculation is not None and room >= 0:
            self._drafts[request.id] = self._open_draft(self._speculation, request, room)
        self._command(request)

    def _open_draft(self, speculation: Speculation, request: GenerationRequest, room: int) -> RequestDraft:
        """Copy sources are made here, on the caller's thread, not between rounds; without them it goes on."""
        try:
            return speculation.open(request, min(request.max_tokens, room))
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            self._publish(LogRecord("warning", f"request {request.id} goes on without copies: {cause}"))
            return speculation.open_plain()

    def cancel(self, request_id: str) -> None:
        """End a waiting request at the next unit border and a running one likewise."""
        self._command(request_id)

    def stop(self) -> None:
        """Make ``run`` return at the next unit border."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _command(self, command: GenerationRequest | str) -> None:
        with self._changed:
            self._commands.append((self._clock(), command))
            self._changed.notify()

    # --- the worker's own thread -------------------------------------------------------------------

    def run(self) -> None:
        """Serve until ``stop``. Errors: ``DeviceLost``, ``EngineEnded``."""
        self._report_statistics()
        while self._wait():
            self.step()

    def step(self) -> None:
        """One cycle: what was asked meanwhile, admission, one decode round, one prefill chunk."""
        self._account.enter(Stage.BOUNDARY)
        self._intake()
        self._expire()
        resident = len(self._scheduler.residents)
        self._residents.admit(self._bind)
        if len(self._scheduler.residents) != resident:  # before a unit that may take long
            self._report_statistics()
        cycle = self._scheduler.next()
        self._decode(self._residents.of(cycle.decode))
        for active in self._residents.of(cycle.chunks):
            if self._turn(active):
                break
        if self._scheduler.idle:
            with self._account.maintenance():
                self._program.check_integrity(*self._cache.kept)
        if self._scheduler.idle or self._account.due:
            self._report_statistics()

    @property
    def idle(self) -> bool:
        """Whether nothing is waiting, running or asked for."""
        return self._scheduler.idle and not self._commands

    def _wait(self) -> bool:
        """Sleep while there is nothing to do; False after ``stop``."""
        with self._changed:
            if self._scheduler.idle:
                self._gaps.pause()
                self._account.idle()
                self._changed.wait_for(lambda: self._stopped or bool(self._commands))
            return not self._stopped

    def _intake(self) -> None:
        """Apply the commands that came since the last cycle, in their order."""
        with self._changed:
            commands, self._commands = self._commands, deque()
        for at, command in commands:
            if isinstance(command, str):
                self._cancel(command)
            else:
                self._accept(command, at)

    def _accept(self, request: GenerationRequest, submitted_at: float) -> None:
        program, draft = self._program, self._drafts.pop(request.id, None)
        try:
            active = prepare(request, submitted_at, program.options, program.config.vocab, self._token_bytes)
            active.draft = draft
        except Exception as error:
            self._report(error)
            self._publish(failed_event(request.id, error))
            return
        self._residents.submit(active)

    def _bind(self, active: Active, bind: Callable[[], None]) -> None:
        self._attempt([active], bind)

    def _decode(self, ready: list[Active]) -> None:
        """A round of those that have room for one more token, the oldest served first."""
        reserve = self._residents.reserve
        goal = self._residents.round_goal
        members = [one for one in ready if one.lane is not None and reserve(one, goal(one))]
        if members:
            self._unit(members, partial(self._units.round, members))

    def _turn(self, active: Active) -> bool:
        """A chunk, or all pieces of one that taps have cut; False: the request has no room for the first."""
        lane, units = active.lane, self._units
        if lane is None or not self._residents.reserve(active, units.chunk_end(active)):
            return False
        last = lane.frontier + self._program.options.prefill_chunk
        self._scheduler.served(active.ticket)
        self._unit([active], partial(units.chunk, active))
        while active.ticket.phase is Phase.PREFILL and (end := units.chunk_end(active)) <= last:
            if not self._residents.reserve(active, end):
                break
            self._unit([active], partial(units.chunk, active))
        return True

    def _expire(self) -> None:
        """Fail what has waited for admission too long, its preparation included."""
        if self._queue_limit_s is None:
            return
        now = self._clock()
        for ticket in list(self._scheduler.waiting):
            active = self._residents.active[ticket.id]
            if now - active.submitted_at + active.request.waited_s <= self._queue_limit_s:
                continue
            self._residents.release(active, whole=True)
            message = f"No lane became free within {1000 * self._queue_limit_s:.0f} ms."
            self._publish(Failed(ticket.id, "request_queue_timeout", message))

    def _cancel(self, request_id: str) -> None:
        active = self._residents.active.get(request_id)
        if active is not None:
            active.turn.cancel()
            self._attempt([active], partial(self._units.finish, active))

    # --- units -------------------------------------------------------------------------------------

    def _unit(self, members: list[Active], run: Callable[[], Failures | None]) -> None:
        """Run one unit of work: what succeeds ends a row of recoveries. Errors: as ``_attempt``."""
        if self._attempt(members, run):
            self._recoveries = 0

    def _attempt(self, members: list[Active], run: Callable[[], Failures | None]) -> bool:
        """Do something for ``members``; its failure fails them only. Returns whether the engine held.

        ``run`` returns the failures that it has kept to single members. Errors: ``DeviceLost``;
        ``EngineEnded`` after RECOVERIES failures in a row.
        """
        try:
            failures = run() or []
        except Exception as error:
            failures = [(members, error)]
        ours = sum(len(failed) for failed, cause in failures if self._report(cause))
        for failed, cause in failures:
            self._fail(failed, cause)
        if ours < len(members):
            return True
        self._recoveries += 1
        self._account.failures += 1
        if self._recoveries > RECOVERIES:
            raise EngineEnded(f"{self._recoveries} units failed in a row; the last: {failures[-1][1]!r}")
        return False

    def _report(self, error: Exception) -> bool:
        """Log a failure of ours; False for what is the request's own. Errors: ``DeviceLost``."""
        kind = _kind(error)
        if kind == "device":
            raise DeviceLost(str(error)) from error
        if kind == "memory":
            self._publish(LogRecord("warning", f"worker out of memory: {error} - recovering"))
        elif kind == "internal":
            trace = "".join(traceback.format_exception(error)).rstrip()
            self._publish(LogRecord("error", f"worker recovering from a failed request\n{trace}"))
        return kind != "request"

    def _fail(self, members: list[Active], error: Exception) -> None:
        """End what is still open of ``members``."""
        for active in members:
            if active.ticket.phase is not Phase.DONE:
                self._residents.release(active, whole=False)
                self._report_statistics()
                for delta in active.turn.close():  # what was drawn reaches the client, whatever fails
                    self._publish(delta)
                self._publish(failed_event(active.request.id, error))

    def _report_statistics(self) -> None:
        """Publish a snapshot."""
        if self._speculation is not None:
            self._account.draft = self._speculation.counters
        self._publish(
            self._account.snapshot(
                gauges(self._residents),
                occupancy(self._program, self._residents),
                cache_counters(self._cache),
            )
        )


def _kind(error: Exception) -> FailureKind:
    """As ``classify``; a failed check of ours stays one when a request is told of it in our own words."""
    if isinstance(error, EngineError) and error.code == "internal_error":
        return "internal"
    return classify(error)
