"""The fast engine's worker: one thread that owns scheduler, program and every request in flight.

Others hand it commands and read the events it publishes. A unit of work (a round, a prefill chunk) commits or
fails whole; a failed unit fails the requests in it and the worker goes on with its queue.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ninfer.engine.account import Account, RequestAccount, Stage, Work
from ninfer.engine.events import Delta, EngineEvent, Failed, Finished, LogRecord, Progress, Started, Usage
from ninfer.engine.failures import FailureKind, classify, failed_event
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.statistics import EngineResources
from ninfer.engine.turn import Turn
from ninfer.engine.worker import DeviceLost
from ninfer.errors import EngineError, RequestError
from ninfer.fast.draft.speculation import RequestDraft, Speculation, draft_counters
from ninfer.fast.program.program import Lane, Program, Row, Sampler, Tokens, check_drawn
from ninfer.fast.schedule.gaps import RoundGaps
from ninfer.fast.schedule.gauges import gauges, occupancy
from ninfer.fast.schedule.scheduler import Phase, Scheduler, Ticket

Publish = Callable[[EngineEvent], None]
TokenBytes = Callable[[int], bytes]

# Contract "How failures end": this many recoveries in a row are survived, the next failure ends the engine.
RECOVERIES = 8


class EngineEnded(Exception):
    """The worker cannot go on; the message says why."""


@dataclass(slots=True, eq=False)
class _Active:
    """One request in flight. ``token`` is committed but not yet taken in by the model.

    ``account`` is None until it is bound.
    """

    request: GenerationRequest
    tokens: Tokens
    axes: Tokens
    turn: Turn
    sampler: Sampler
    ticket: Ticket
    submitted_at: float
    lane: Lane | None = None
    account: RequestAccount | None = None
    token: int = -1
    began: float = 0.0
    first: float = 0.0
    last: float = 0.0
    draft: RequestDraft | None = None

    @property
    def bound(self) -> Lane:
        """Its lane, once it has one."""
        assert self.lane is not None
        return self.lane


# Who failed, and of what.
_Failures = list[tuple[list[_Active], Exception]]


class FastWorker:
    """Implements ``Worker`` over a ``Program``.

    ``queue_limit_s`` is the longest a request may wait for admission; ``clock`` is monotonic, in seconds.
    ``resources`` says what was taken at the start; ``speculation`` drafts for decode rounds.
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
    ) -> None:
        self.resources = resources or EngineResources()
        self._program, self._token_bytes = program, token_bytes
        self._publish, self._clock = publish, clock
        self._queue_limit_s = queue_limit_s
        self._speculation = speculation
        self._drafts: dict[str, RequestDraft] = {}
        self._scheduler = Scheduler(program.options.lanes, program.options.pages)
        self._account = Account(clock)
        self._gaps = RoundGaps(lambda line: publish(LogRecord("debug", line)))
        self._active: dict[str, _Active] = {}
        self._changed = threading.Condition()
        self._commands: deque[tuple[float, GenerationRequest | str]] = deque()
        self._stopped = False
        self._recoveries = 0

    # --- any thread --------------------------------------------------------------------------------

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request; after ``stop`` it is dropped (the outlet has ended it)."""
        if self._speculation is not None:
            room = self._program.options.max_context - len(request.tokens) // 4
            if room >= 0:  # copy sources are made here, on the caller's thread, not between rounds
                self._drafts[request.id] = self._speculation.open(request, min(request.max_tokens, room))
        self._command(request)

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
        while self._wait():
            self.step()

    def step(self) -> None:
        """One cycle: what was asked meanwhile, admission, one decode round, one prefill chunk."""
        self._account.enter(Stage.BOUNDARY)
        self._intake()
        self._expire()
        for ticket in self._scheduler.admit():
            active = self._active[ticket.id]
            self._attempt([active], partial(self._bind, active))
        cycle = self._scheduler.next()
        decoding = [self._active[ticket.id] for ticket in cycle.decode]
        if decoding:
            self._unit(decoding, partial(self._decode, decoding))
        if cycle.prefill is not None and cycle.prefill.phase is Phase.PREFILL:
            prefilling = self._active[cycle.prefill.id]
            self._unit([prefilling], partial(self._prefill, prefilling))
        if self._scheduler.idle:
            with self._account.maintenance():
                self._program.check_integrity()
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
        draft = self._drafts.pop(request.id, None)
        try:
            active = self._prepare(request, submitted_at)
            active.draft = draft
        except Exception as error:
            self._report(error)
            self._publish(failed_event(request.id, error))
            return
        self._active[request.id] = active
        self._scheduler.submit(active.ticket)

    def _prepare(self, request: GenerationRequest, submitted_at: float) -> _Active:
        """The request's checked prompt, output and sampler.

        Errors: ``RequestError`` for a prompt that is empty, too long or has ids outside the model.
        """
        options = self._program.options
        tokens = np.frombuffer(request.tokens, "<i4")
        axes = np.frombuffer(request.positions, "<i4").reshape(3, -1)
        if not axes.size:
            axes = np.tile(np.arange(len(tokens), dtype=np.int32), (3, 1))
        check_prompt(tokens, axes, options.max_context, self._program.config.vocab)
        room = min(request.max_tokens, options.max_context - len(tokens))
        pages = self._program.pages_for(len(tokens) + max(room, 0))
        if pages > options.pages:
            raise EngineError(
                "insufficient_memory",
                f"the request may need {pages} KV pages of 64 tokens, this server has {options.pages}; "
                "ask for fewer tokens or start with a larger --kv-capacity",
            )
        turn = Turn(request, self._token_bytes, len(tokens), room, options.vocabulary)
        sampler = Sampler(request.sampling, turn.counts)
        return _Active(request, tokens, axes, turn, sampler, Ticket(request.id, pages), submitted_at)

    def _bind(self, active: _Active) -> None:
        binding_at = self._clock()
        active.lane = self._program.open_lane(active.ticket.pages * 64)
        active.account = self._account.bound(active.submitted_at, binding_at, len(active.tokens))
        active.began = self._clock()
        active.turn.begin(active.began)
        queue_s = active.began - active.submitted_at
        self._publish(Started(active.request.id, len(active.tokens), 0, queue_s))

    def _expire(self) -> None:
        """Fail what has waited for admission too long; the queue is in order of submission."""
        if self._queue_limit_s is None:
            return
        waiting, oldest = self._scheduler.waiting, self._clock() - self._queue_limit_s
        while waiting and self._active[waiting[0].id].submitted_at < oldest:
            ticket = waiting[0]
            self._release(self._active[ticket.id])
            message = f"No lane became free within {1000 * self._queue_limit_s:.0f} ms."
            self._publish(Failed(ticket.id, "request_queue_timeout", message))

    def _cancel(self, request_id: str) -> None:
        active = self._active.get(request_id)
        if active is not None:
            active.turn.cancel()
            self._attempt([active], partial(self._finish, active))

    # --- units -------------------------------------------------------------------------------------

    def _unit(self, members: list[_Active], run: Callable[[], _Failures | None]) -> None:
        """Run one unit of work: what succeeds ends a row of recoveries. Errors: as ``_attempt``."""
        if self._attempt(members, run):
            self._recoveries = 0

    def _attempt(self, members: list[_Active], run: Callable[[], _Failures | None]) -> bool:
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

    def _fail(self, members: list[_Active], error: Exception) -> None:
        """End what is still open of ``members``."""
        for active in members:
            if active.ticket.phase is not Phase.DONE:
                self._release(active)
                self._report_statistics()
                self._publish(failed_event(active.request.id, error))

    def _prefill(self, active: _Active) -> None:
        """One chunk of one prompt; after the last one, the first token."""
        lane, account, chunk = active.lane, active.account, self._program.options.prefill_chunk
        assert lane is not None
        assert account is not None
        self._gaps.pause()
        begin = lane.frontier
        end = min(len(active.tokens), begin + chunk)
        self._account.enter(Stage.SUBMIT, Work.PREFILL)
        row = self._program.prefill(lane, active.tokens[begin:end], active.axes[:, begin:end])
        self._account.launched(*self._program.last_unit)
        self._account.prefilled(account, end - begin)
        elapsed = self._clock() - active.began
        self._publish(Progress(active.request.id, len(active.tokens), 0, end, elapsed))
        if end < len(active.tokens):
            return
        if active.turn.reason is None:
            self._account.enter(Stage.SUBMIT, Work.PREFILL)
            drawn = self._program.first(lane, row, active.sampler)
            self._account.launched(*self._program.last_unit)
            self._settle(active, drawn)
        else:  # no output was asked for: the prompt is processed, nothing is drawn
            active.first = active.last = self._clock()
            self._finish(active)
        if active.ticket.phase is Phase.PREFILL:
            self._scheduler.prefilled(active.ticket)

    def _decode(self, members: list[_Active]) -> _Failures:
        """One round: every member's pending token in, its next token out. A bad row fails alone."""
        if self._speculation is not None:
            return self._speculate(members, self._speculation)
        rows = []
        for active in members:
            assert active.lane is not None
            rows.append(Row(active.lane, active.token, active.sampler))
        failures: _Failures = []
        self._account.enter(Stage.SUBMIT, Work.DECODE)
        tokens = self._program.round(rows)
        seconds = self._account.launched(*self._program.last_unit)
        self._account.decoded([active.account for active in members if active.account], seconds)
        self._gaps.note(*self._program.last_unit)
        for active, drawn in zip(members, tokens, strict=True):
            try:
                self._settle(active, drawn)
            except Exception as error:
                failures.append(([active], error))
        return failures

    def _speculate(self, members: list[_Active], speculation: Speculation) -> _Failures:
        """One round with drafts: every member gets those that the target drew itself, and one token."""
        self._account.enter(Stage.SUBMIT, Work.DECODE)
        began = self._clock()
        results = speculation.round(members)
        unit = began, self._clock()
        seconds = self._account.launched(*unit)
        self._account.decoded([active.account for active in members if active.account], seconds)
        self._account.draft = draft_counters(speculation.totals)
        self._gaps.note(*unit)
        failures: _Failures = []
        for active, result in zip(members, results, strict=True):
            try:
                self._publish_settled(active, result.deltas, result.tokens)
            except Exception as error:
                failures.append(([active], error))
            else:
                if result.error is not None:
                    failures.append(([active], result.error))
        return failures

    def _settle(self, active: _Active, drawn: int) -> None:
        """Commit a token, publish what became whole, finish when it was the last.

        It is the drawn one, unless the turn says which must follow.
        """
        token = check_drawn(drawn)
        if active.turn.forced is not None:
            token = active.turn.forced
        deltas = active.turn.commit(token, self._clock())
        active.token = token
        self._publish_settled(active, deltas, 1)
        if self._speculation is not None and active.turn.reason is None:
            self._speculation.begin(active)

    def _publish_settled(self, active: _Active, deltas: Iterable[Delta], tokens: int) -> None:
        """Publish what ``tokens`` committed tokens made whole; finish when the last one ended the answer."""
        active.last = self._clock()
        if active.turn.committed == tokens:
            active.first = active.last
        assert active.account is not None
        self._account.committed(active.account, tokens)
        for delta in deltas:
            if delta.text:
                self._account.outputting(active.account)
            self._publish(delta)
        if active.turn.reason is not None:
            self._finish(active)

    def _finish(self, active: _Active) -> None:
        """Publish the request's good end and give its memory back."""
        now = self._clock()
        started = active.lane is not None
        prefilled = active.first or now
        for delta in active.turn.close():
            self._publish(delta)
        work = None if active.account is None else self._account.settled(active.account)
        self._release(active)
        usage = Usage(
            prompt_tokens=len(active.tokens) if started else 0,
            cached_tokens=0,
            completion_tokens=active.turn.committed,
            reasoning_tokens=active.turn.reasoning_tokens,
            prefill_s=prefilled - active.began if started else 0.0,
            decode_s=active.last - active.first if active.first else 0.0,
            time_to_first_token_s=prefilled - active.submitted_at if started else 0.0,
            draft=None if active.draft is None else active.draft.tally.usage,
        )
        assert active.turn.reason is not None
        turn = active.turn
        self._report_statistics()
        ends = turn.stop_string, turn.stop_token, work, turn.in_thinking
        self._publish(Finished(active.request.id, active.turn.reason, usage, *ends))

    def _report_statistics(self) -> None:
        """Publish a snapshot."""
        scheduler, program = self._scheduler, self._program
        self._publish(self._account.snapshot(gauges(scheduler), occupancy(program, scheduler)))

    def _release(self, active: _Active) -> None:
        """Forget a request and free its lane."""
        self._scheduler.remove(active.ticket)
        del self._active[active.request.id]
        if active.lane is not None:
            if self._speculation is not None:
                self._speculation.end(active.lane)
            self._program.close_lane(active.lane)
            active.lane = None


def _kind(error: Exception) -> FailureKind:
    """As ``classify``; a failed check of ours stays one when a request is told of it in our own words."""
    if isinstance(error, EngineError) and error.code == "internal_error":
        return "internal"
    return classify(error)


def check_prompt(tokens: Tokens, axes: Tokens, max_context: int, rows: int) -> None:
    """Refuse a prompt the model cannot take. Errors: ``RequestError``."""
    count = len(tokens)
    if count == 0:
        raise RequestError("invalid_prompt", "the prompt has no tokens")
    if count > max_context:
        raise RequestError(
            "context_length_exceeded",
            f"the prompt has {count} tokens, more than the context of {max_context}",
        )
    if tokens.min() < 0 or tokens.max() >= rows:
        raise RequestError("invalid_prompt", f"a prompt token is outside 0..{rows - 1}")
    if axes.shape[1] != count:
        raise RequestError("invalid_prompt", f"{axes.shape[1]} positions for {count} tokens")
