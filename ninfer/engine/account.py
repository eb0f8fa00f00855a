"""Counts a worker's time and tokens, for the whole engine and for each resident request.

Owns the arithmetic of ``EngineStatistics`` and ``RequestWork``; the worker says what it does. Time is cut
where the worker passes from one phase to the next, so that every segment is counted once; what a request saw
is the difference of two readings, since everything that happens while it is resident holds it up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum

from ninfer.engine.request_work import AdmissionFallback, FirstOutput, RequestWork, UnitSeconds
from ninfer.engine.statistics import (
    CacheCounters,
    ClassSeconds,
    DraftCounters,
    EngineStatistics,
    HostSeconds,
    Occupancy,
    RecoveryCounters,
    SchedulerGauges,
    TokenCounters,
    Transfers,
    WorkSeconds,
)

# The least time between two snapshots of a busy worker.
INTERVAL_S = 0.25
_PHASES = 6


class Stage(IntEnum):
    """What the worker is at; the members of ``HostSeconds``, then the wait for a launched unit."""

    BOUNDARY = 0
    SUBMIT = 1
    POST = 2
    COMMIT = 3
    MAINTENANCE = 4
    WAIT = 5


class Work(IntEnum):
    """What it is at it for."""

    DECODE = 0
    PREFILL = 1
    CONTROL = 2


@dataclass(slots=True, eq=False)
class RequestAccount:
    """One resident request. ``seen`` is the clock's reading when its binding ended."""

    number: int
    submitted_at: float
    queue_s: float
    binding_s: float
    seen: list[float]
    prefill: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    computed_prefill_tokens: int = 0
    prefill_units: int = 0
    control_units: int = 0
    committed: int = 0
    decode_rounds: int = 0
    decode_s: float = 0.0
    decode_share_s: float = 0.0
    preemptions: int = 0
    snapshot_restores: int = 0
    replay_restores: int = 0
    replayed_tokens: int = 0
    paused_s: float = 0.0
    replay: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    preferred_reused_tokens: int = 0
    source_wait_s: float = 0.0
    revoked_checkpoints: int = 0
    admission_fallback: AdmissionFallback = "none"
    first_output: FirstOutput | None = None


class Account:
    """One worker's account; used from its thread alone. ``clock`` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds = [0.0] * (_PHASES * len(Work))
        self._phase, self._work = Stage.BOUNDARY, Work.CONTROL
        self._since: float | None = None
        self._unit = (0.0, 0.0, 0.0)
        self._numbers = itertools.count(1)
        self._published_at = clock()
        self.publication_s, self.publications = 0.0, 0
        self.prompt_tokens = self.cached_tokens = self.prefill_tokens = self.replayed_tokens = 0
        self.generation_tokens = self.decode_tokens = 0
        self.decode_rounds = self.decode_row_rounds = 0
        self.prefill_units = self.control_units = 0
        self.preemptions = self.snapshot_restores = self.replay_restores = self.failures = 0
        self.draft = DraftCounters()
        self.transfers = Transfers()

    # --- time --------------------------------------------------------------------------------------

    def enter(self, phase: Stage, work: Work = Work.CONTROL) -> None:
        """From now on the worker is at this."""
        now = self._clock()
        self._close(now)
        self._phase, self._work, self._since = phase, work, now

    def idle(self) -> None:
        """From now on the worker sleeps; nothing is counted until the next ``enter``."""
        self._close(self._clock())
        self._since = None

    def launched(self, launched: float, ended: float) -> float:
        """A unit has returned that was launched and ended then; its whole duration in seconds.

        Splits the time since ``enter`` into before, wait and after; the worker is at committing from here.
        """
        now, began, work = self._clock(), self._since, self._work
        assert began is not None, "a unit runs between enter and idle"
        if not began <= launched <= ended <= now:  # moments of another clock: only their distance counts
            launched, ended = now - min(now - began, max(0.0, ended - launched)), now
        self._unit = (launched - began, ended - launched, now - ended)
        for phase, seconds in zip((Stage.SUBMIT, Stage.WAIT, Stage.POST), self._unit, strict=True):
            self._seconds[_PHASES * work + phase] += seconds
        self._phase, self._since = Stage.COMMIT, now
        return now - began

    @contextmanager
    def maintenance(self) -> Iterator[None]:
        """Bookkeeping that serves no request; afterwards the worker is at the boundary."""
        self.enter(Stage.MAINTENANCE)
        yield
        self.enter(Stage.BOUNDARY)

    def _close(self, now: float) -> None:
        if self._since is not None:
            self._seconds[_PHASES * self._work + self._phase] += now - self._since

    def _reading(self) -> list[float]:
        """Seconds by class and phase up to now."""
        now = self._clock()
        self._close(now)
        if self._since is not None:
            self._since = now
        return list(self._seconds)

    # --- requests ----------------------------------------------------------------------------------

    def bound(
        self, submitted_at: float, binding_at: float, prompt_tokens: int, cached_tokens: int = 0
    ) -> RequestAccount:
        """A request has its place for the first time; its binding began at ``binding_at``."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        seen = self._reading()
        return RequestAccount(
            next(self._numbers), submitted_at, binding_at - submitted_at, self._clock() - binding_at, seen
        )

    def prefilled(self, request: RequestAccount, tokens: int) -> None:
        """The unit that just returned took in ``tokens`` prompt tokens for the first time."""
        self.prefill_tokens += tokens
        self.prefill_units += 1
        request.computed_prefill_tokens += tokens
        request.prefill_units += 1
        request.prefill = [sum(pair) for pair in zip(request.prefill, self._unit, strict=True)]

    def replayed(self, request: RequestAccount, tokens: int) -> None:
        """The unit that just returned rebuilt ``tokens`` tokens of a paused request."""
        self.replayed_tokens += tokens
        request.replayed_tokens += tokens
        request.replay = [sum(pair) for pair in zip(request.replay, self._unit, strict=True)]

    def decoded(self, requests: Sequence[RequestAccount], seconds: float) -> None:
        """A decode round over these requests has returned after ``seconds``."""
        self.decode_rounds += 1
        self.decode_row_rounds += len(requests)
        for request in requests:
            request.decode_rounds += 1
            request.decode_s += seconds
            request.decode_share_s += seconds / len(requests)

    def committed(self, request: RequestAccount, tokens: int = 1) -> None:
        """``tokens`` output tokens were committed."""
        if tokens:
            self.generation_tokens += tokens
            self.decode_tokens += tokens - (request.committed == 0)
            request.committed += tokens

    def outputting(self, request: RequestAccount) -> None:
        """The first delta with text is about to be published."""
        if request.first_output is None:
            host, device_wait_s = self._exposure(request, self._reading())
            request.first_output = FirstOutput(
                elapsed_s=self._clock() - request.submitted_at,
                queue_s=request.queue_s,
                binding_s=request.binding_s,
                paused_s=request.paused_s,
                host=host,
                device_wait_s=device_wait_s,
                prefill=UnitSeconds(*request.prefill),
                replay=UnitSeconds(*request.replay),
                computed_prefill_tokens=request.computed_prefill_tokens,
            )

    def settled(self, request: RequestAccount) -> RequestWork:
        """What the request saw, at its end."""
        reading = self._reading()
        host, device_wait_s = self._exposure(request, reading)
        decode = _difference(reading, request.seen)[:_PHASES]
        return RequestWork(
            engine_request_id=request.number,
            queue_s=request.queue_s,
            computed_prefill_tokens=request.computed_prefill_tokens,
            host=host,
            device_wait_s=device_wait_s,
            decode_host_s=sum(decode[: Stage.WAIT]),
            decode_device_wait_s=decode[Stage.WAIT],
            decode_rounds=request.decode_rounds,
            decode_s=request.decode_s,
            decode_share_s=request.decode_share_s,
            prefill_units=request.prefill_units,
            control_units=request.control_units,
            preemptions=request.preemptions,
            snapshot_restores=request.snapshot_restores,
            replay_restores=request.replay_restores,
            replayed_tokens=request.replayed_tokens,
            paused_ns=round(request.paused_s * 1e9),
            preferred_reused_tokens=request.preferred_reused_tokens,
            source_wait_s=request.source_wait_s,
            revoked_checkpoints=request.revoked_checkpoints,
            admission_fallback=request.admission_fallback,
            first_output=request.first_output,
        )

    def _exposure(self, request: RequestAccount, reading: list[float]) -> tuple[HostSeconds, float]:
        phases = _by_phase(_difference(reading, request.seen))
        return HostSeconds(*phases[: Stage.WAIT]), phases[Stage.WAIT]

    # --- snapshots ---------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether a busy worker should publish a snapshot again."""
        return self._clock() - self._published_at >= INTERVAL_S

    def snapshot(
        self, scheduler: SchedulerGauges, occupancy: Occupancy, cache: CacheCounters | None = None
    ) -> EngineStatistics:
        """Everything counted up to now; its own cost shows in the next one."""
        reading = self._reading()
        began = self._published_at = self._clock()
        statistics = EngineStatistics(
            taken_s=began,
            scheduler=scheduler,
            tokens=TokenCounters(
                self.prompt_tokens,
                self.cached_tokens,
                self.prefill_tokens,
                self.replayed_tokens,
                self.generation_tokens,
                self.decode_tokens,
            ),
            decode_rounds=self.decode_rounds,
            decode_row_rounds=self.decode_row_rounds,
            prefill_units=self.prefill_units,
            control_units=self.control_units,
            draft=self.draft,
            recovery=RecoveryCounters(
                self.preemptions, self.snapshot_restores, self.replay_restores, self.failures
            ),
            work=self._work_seconds(reading),
            occupancy=occupancy,
            transfers=self.transfers,
            cache=cache or CacheCounters(),
        )
        self.publications += 1
        spent = self._clock() - began
        self.publication_s += spent
        self._seconds[_PHASES * Work.CONTROL + Stage.MAINTENANCE] += spent
        if self._since is not None:
            self._since += spent
        return statistics

    def _work_seconds(self, reading: list[float]) -> WorkSeconds:
        phases = _by_phase(reading)
        classes = []
        for work in Work:
            of_class = reading[_PHASES * work : _PHASES * (work + 1)]
            classes += [sum(of_class[: Stage.WAIT]), of_class[Stage.WAIT]]
        return WorkSeconds(
            host=HostSeconds(*phases[: Stage.WAIT]),
            device_wait_s=phases[Stage.WAIT],
            classes=ClassSeconds(*classes),
            publication_s=self.publication_s,
            publications=self.publications,
        )


def _difference(later: Sequence[float], earlier: Sequence[float]) -> list[float]:
    return [after - before for after, before in zip(later, earlier, strict=True)]


def _by_phase(seconds: Sequence[float]) -> list[float]:
    """Seconds by phase over all classes."""
    return [sum(seconds[phase::_PHASES]) for phase in range(_PHASES)]
