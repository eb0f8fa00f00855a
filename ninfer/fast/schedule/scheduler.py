"""Admission, rotation and batching, as a pure state machine over request tickets.

Fresh requests enter first in, first out; one that does not fit may be overtaken by at most ``lanes`` younger
ones. A cycle is one decode round of every decode-ready resident, then one prefill chunk of the resident whose
turn it is: a running stream waits for at most one chunk, and a prefill for one chunk of each other. Owns
order only: no model, no clock, no text.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum


class Phase(Enum):
    """Where a ticket is; it only moves forward."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


@dataclass(slots=True, eq=False)
class Ticket:
    """One request as the scheduler sees it: pages it needs at most, and its phase."""

    id: str
    pages: int
    phase: Phase = Phase.WAITING
    overtaken: int = 0


@dataclass(frozen=True, slots=True)
class Cycle:
    """What to run next: a decode round of ``decode`` (may be empty), then a chunk of ``prefill``."""

    decode: tuple[Ticket, ...]
    prefill: Ticket | None


@dataclass(slots=True)
class Scheduler:
    """``lanes`` residents over ``pages`` pages in all."""

    lanes: int
    pages: int
    waiting: deque[Ticket] = field(default_factory=deque)
    residents: list[Ticket] = field(default_factory=list)
    _prefilling: deque[Ticket] = field(default_factory=deque)

    @property
    def free_pages(self) -> int:
        return self.pages - sum(ticket.pages for ticket in self.residents)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.residents

    def submit(self, ticket: Ticket) -> None:
        """Append to the queue; the caller has checked that ``ticket.pages`` fits an empty pool."""
        assert ticket.phase is Phase.WAITING
        assert ticket.pages <= self.pages
        self.waiting.append(ticket)

    def admit(self) -> list[Ticket]:
        """Move every waiting ticket that fits and may enter into the residents, in order.

        A scan stops at the first blocked ticket that has been overtaken ``lanes`` times; otherwise it looks
        at the head and at most ``lanes`` tickets behind it.
        """
        admitted: list[Ticket] = []
        blocked: list[Ticket] = []
        for ticket in list(self.waiting):
            if len(self.residents) == self.lanes or len(blocked) > self.lanes:
                break
            if ticket.pages > self.free_pages:
                blocked.append(ticket)
                if ticket.overtaken >= self.lanes:
                    break
                continue
            for older in blocked:
                older.overtaken += 1
            self.waiting.remove(ticket)
            ticket.phase = Phase.PREFILL
            self.residents.append(ticket)
            self._prefilling.append(ticket)
            admitted.append(ticket)
            if any(older.overtaken >= self.lanes for older in blocked):
                break
        return admitted

    def next(self) -> Cycle:
        """The next cycle of the residents; both parts are empty when there is nothing to run."""
        decode = tuple(ticket for ticket in self.residents if ticket.phase is Phase.DECODE)
        if not self._prefilling:
            return Cycle(decode, None)
        ticket = self._prefilling[0]
        self._prefilling.rotate(-1)
        return Cycle(decode, ticket)

    def prefilled(self, ticket: Ticket) -> None:
        """The ticket's prompt is in; it decodes from the next cycle on."""
        assert ticket.phase is Phase.PREFILL
        self._prefilling.remove(ticket)
        ticket.phase = Phase.DECODE

    def remove(self, ticket: Ticket) -> None:
        """Forget a waiting or resident ticket: finished, cancelled or failed."""
        if ticket.phase is Phase.WAITING:
            self.waiting.remove(ticket)
        else:
            self.residents.remove(ticket)
            if ticket.phase is Phase.PREFILL:
                self._prefilling.remove(ticket)
        ticket.phase = Phase.DONE
