"""Admission, rotation, pauses and batching, as a pure state machine over request tickets.

Fresh requests enter first in, first out; one that does not fit may be overtaken by at most ``lanes`` younger
ones. A cycle is one decode round of every decode-ready resident, then a turn of prefill or replay, at most a
chunk: the one with the least left to take in has it, as long as no other then waits for ``lanes`` turns.
Under pressure a younger resident is paused for an older one; paused ones come back in the order of their
submission, and one that comes back is spared until it has done something new. Owns order only: no memory, no
model, no clock, no text.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum


class Phase(Enum):
    """Where a ticket is."""

    WAITING = "waiting"
    PREFILL = "prefill"
    REPLAY = "replay"
    DECODE = "decode"
    PAUSED = "paused"
    DONE = "done"


_CHUNKED = (Phase.PREFILL, Phase.REPLAY)


@dataclass(slots=True, eq=False)
class Ticket:
    """One request as the scheduler sees it. ``order`` is that of submission.

    ``spared``: it has come back from a pause and has done nothing new yet. ``rest``: tokens that it takes in
    before it decodes; ``passed``: turns of others since its own last one.
    """

    id: str
    order: int = 0
    phase: Phase = Phase.WAITING
    overtaken: int = 0
    spared: bool = False
    rest: int = 0
    passed: int = 0


@dataclass(frozen=True, slots=True)
class Cycle:
    """What to run next: a decode round of ``decode`` (may be empty), then a turn of the first of ``chunks``.

    Later ones of ``chunks`` stand in for one that lacks memory.
    """

    decode: tuple[Ticket, ...]
    chunks: tuple[Ticket, ...]


@dataclass(slots=True)
class Scheduler:
    """``lanes`` residents at most; residents and paused ones stand in the order of submission.

    Those with chunks to run stand in ``_rotation``, the longest unserved first.
    """

    lanes: int
    waiting: deque[Ticket] = field(default_factory=deque)
    residents: list[Ticket] = field(default_factory=list)
    paused: list[Ticket] = field(default_factory=list)
    _rotation: deque[Ticket] = field(default_factory=deque)
    _orders: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.residents or self.paused)

    @property
    def lane_free(self) -> bool:
        return len(self.residents) < self.lanes

    def submit(self, ticket: Ticket) -> None:
        """Append to the queue."""
        assert ticket.phase is Phase.WAITING
        ticket.order = next(self._orders)
        self.waiting.append(ticket)

    # --- admission and pauses ----------------------------------------------------------------------

    def admit(self, bind: Callable[[Ticket], bool]) -> None:
        """Let waiting tickets in, in order: ``bind`` takes all that one needs and says whether it could.

        A scan stops at the first blocked ticket that has been overtaken ``lanes`` times; otherwise it looks
        at the head and at most ``lanes`` tickets behind it. ``bind`` may remove its ticket instead.
        """
        blocked: list[Ticket] = []
        for ticket in list(self.waiting):
            if not self.lane_free or len(blocked) > self.lanes:
                return
            bound = bind(ticket)
            if ticket.phase is Phase.DONE:
                continue
            if not bound:
                blocked.append(ticket)
                if ticket.overtaken >= self.lanes:
                    return
                continue
            for older in blocked:
                older.overtaken += 1
            self.waiting.remove(ticket)
            self._enter(ticket, Phase.PREFILL)
            if any(older.overtaken >= self.lanes for older in blocked):
                return

    def pause(self, ticket: Ticket) -> None:
        """The resident gives up its place."""
        self._leave(ticket)
        ticket.phase = Phase.PAUSED
        self.paused.append(ticket)
        self.paused.sort(key=lambda other: other.order)

    def resume(self, ticket: Ticket, phase: Phase) -> None:
        """The oldest paused ticket is resident again, and spared until ``progressed``."""
        assert ticket is self.paused[0]
        assert self.lane_free
        self.paused.remove(ticket)
        self._enter(ticket, phase)
        ticket.spared = True

    def progressed(self, ticket: Ticket) -> None:
        """The ticket has done something new."""
        ticket.spared = False

    def is_oldest(self, ticket: Ticket) -> bool:
        """Whether no resident is older."""
        return not self.residents or self.residents[0].order >= ticket.order

    def victim(self, ticket: Ticket) -> Ticket | None:
        """The youngest resident that may be paused for ``ticket``."""
        for other in reversed(self.residents):
            if other.order > ticket.order and not other.spared:
                return other
        return None

    def _enter(self, ticket: Ticket, phase: Phase) -> None:
        ticket.phase, ticket.passed = phase, 0
        self.residents.append(ticket)
        self.residents.sort(key=lambda other: other.order)
        if phase in _CHUNKED:
            self._rotation.append(ticket)

    def _leave(self, ticket: Ticket) -> None:
        self.residents.remove(ticket)
        if ticket.phase in _CHUNKED:
            self._rotation.remove(ticket)
        ticket.spared = False

    # --- running -----------------------------------------------------------------------------------

    def next(self) -> Cycle:
        """The next cycle of the residents; both parts are empty when there is nothing to run."""
        decode = tuple(ticket for ticket in self.residents if ticket.phase is Phase.DECODE)
        returning = [ticket for ticket in self._rotation if ticket.spared]
        others = [ticket for ticket in self._rotation if not ticket.spared]
        if others:
            place = self._shortest(others)
            others.insert(0, others.pop(place))
        return Cycle(decode, (*returning, *others))

    def _shortest(self, rotation: list[Ticket]) -> int:
        """Whose turn is next: the least rest, unless one before it would then wait for too many turns.

        Whoever stands at place i waits for i more at worst, so nobody ever sees ``lanes`` turns of others.
        """
        place = min(range(len(rotation)), key=lambda index: rotation[index].rest)
        late = any(rotation[index].passed + index + 1 >= self.lanes for index in range(place))
        return 0 if late else place

    def served(self, ticket: Ticket) -> None:
        """The ticket gets its turn: of those with chunks to run it has waited the least now."""
        self._rotation.remove(ticket)
        for other in self._rotation:
            other.passed += 1
        self._rotation.append(ticket)
        ticket.passed = 0

    def advance(self, ticket: Ticket, phase: Phase) -> None:
        """The ticket's replay or prompt is in; it goes on with ``phase`` from the next cycle on."""
        assert ticket.phase in _CHUNKED
        if phase not in _CHUNKED:
            self._rotation.remove(ticket)
        ticket.phase = phase

    def remove(self, ticket: Ticket) -> None:
        """Forget a ticket: finished, cancelled or failed."""
        if ticket.phase is Phase.WAITING:
            self.waiting.remove(ticket)
        elif ticket.phase is Phase.PAUSED:
            self.paused.remove(ticket)
        else:
            self._leave(ticket)
        ticket.phase = Phase.DONE
