"""Who has memory: admission, growth before each unit, pauses under pressure, and the way back.

A request takes pages as it advances. What nobody uses is evicted first; then a younger resident is paused for
an older one. A fresh request enters when its whole prompt fits beside what residents still need; it never
displaces anybody. Owns requests in flight and their lanes; computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ninfer.engine.account import Account
from ninfer.engine.events import EngineEvent, LogRecord, Started
from ninfer.fast.active import Active
from ninfer.fast.coalescing import Coalescing
from ninfer.fast.draft.speculation import Speculation
from ninfer.fast.memory.lanes import Lane, pages_for
from ninfer.fast.ops.control import PAGE_TOKENS
from ninfer.fast.prefix.cache import ROOT, PrefixCache, Quote
from ninfer.fast.prefix.snapshots import Kind
from ninfer.fast.program.program import Program
from ninfer.fast.schedule.scheduler import Phase, Scheduler, Ticket
from ninfer.fast.transitions import Transitions


class Residents:
    """Every request between submission and its end; ``publish`` hears of admissions and pauses.

    ``report`` publishes a snapshot of statistics. ``materializing``: requests whose state is being restored.
    """

    def __init__(
        self,
        program: Program,
        cache: PrefixCache,
        account: Account,
        publish: Callable[[EngineEvent], None],
        clock: Callable[[], float],
        coalescing: Coalescing,
        transitions: Transitions,
        speculation: Speculation | None,
        report: Callable[[], None],
    ) -> None:
        self.scheduler = Scheduler(program.options.lanes)
        self.materializing = 0
        self._report = report
        self.cache = cache
        self.active: dict[str, Active] = {}
        self._program, self._account, self._publish, self._clock = program, account, publish, clock
        self._coalescing, self._transitions, self._speculation = coalescing, transitions, speculation
        self._changed = False

    def submit(self, active: Active) -> None:
        """A checked request joins the queue."""
        self.active[active.request.id] = active
        self.scheduler.submit(active.ticket)
        self._changed = True

    def notice(self) -> None:
        """Something that may let others in has changed."""
        self._changed = True

    def of(self, tickets: Iterator[Ticket] | tuple[Ticket, ...] | list[Ticket]) -> list[Active]:
        """The requests of some tickets."""
        return [self.active[ticket.id] for ticket in tickets]

    # --- admission ---------------------------------------------------------------------------------

    def admit(self, attempt: Callable[[Active, Callable[[], None]], None]) -> None:
        """Bring back the oldest paused request, then let waiting ones in; only after something changed.

        ``attempt`` runs a binding and keeps its failure to the request.
        """
        if not self._changed:
            return
        self._changed = False
        self._resume_oldest(attempt)

        def bind(ticket: Ticket) -> bool:
            active = self.active[ticket.id]
            goal = active.prompt + min(PAGE_TOKENS, max(active.room, 0))
            quote = self._fitting(active, goal, self._demand())
            if quote is None or self._waits(active, quote):
                return False
            attempt(active, lambda: self._bind(active, quote))
            return active.lane is not None

        self.scheduler.admit(bind)

    def _fitting(self, active: Active, goal: int, demand: int) -> Quote | None:
        """Where to begin so that ``goal`` tokens fit beside what others need; at worst at the root."""
        available = self.cache.available_pages - demand
        for quote in (self.cache.quote(active.lineage), ROOT):
            if self.cache.pages_needed(quote, goal) <= available:
                return quote
        return None

    def _waits(self, active: Active, quote: Quote) -> bool:
        siblings = self.of([one for one in self.scheduler.residents if one.phase is Phase.PREFILL])
        return self._coalescing.waits(active, quote.frontier, siblings, self._clock())

    def _demand(self) -> int:
        """Pages that residents still need for their prompts, or for one more unit."""
        total = 0
        for active in self.of(self.scheduler.residents):
            assert active.lane is not None
            total += max(0, pages_for(self._goal(active)) - len(active.lane.pages))
        return total

    def _goal(self, active: Active) -> int:
        assert active.lane is not None
        after = active.prompt + min(PAGE_TOKENS, max(active.room, 0))
        return after if active.ticket.phase is Phase.PREFILL else self.round_goal(active)

    def _bind(self, active: Active, quote: Quote) -> None:
        """First binding: a lane from the deepest cached prefix, with pages for the first chunk."""
        binding_at = self._clock()
        end = min(active.prompt, quote.frontier + self._program.options.prefill_chunk)
        lane = self._enter(active, quote, end)
        if lane is None:
            return
        active.lane, active.cached = lane, quote.frontier
        active.ticket.rest = active.rest
        self.cache.selected(quote)
        self.cache.plan(active.lineage, quote)
        active.account = self._account.bound(active.submitted_at, binding_at, active.prompt, active.cached)
        active.account.source_wait_s = self._coalescing.waited(active, self._clock())
        active.began = self._clock()
        active.turn.begin(active.began)
        queue_s = active.began - active.submitted_at
        self._publish(Started(active.request.id, active.prompt, active.cached, queue_s))

    def _enter(self, active: Active, quote: Quote, tokens: int) -> Lane | None:
        """A lane bound at ``quote`` with pages for ``tokens`` tokens; None where they do not fit after all.

        Whoever looks while an image is copied sees a request materializing.
        """
        released, bound = self._released, False
        lane = self._program.open_lane()
        try:
            if quote.frontier:
                self.materializing = 1
                self._report()
            bound = self.cache.bind(active.lineage, lane, quote, tokens)
        finally:
            self.materializing = 0
            self._note_released(active, lane, released)
            if not bound:
                self._program.close_lane(lane)
        return lane if bound else None

    @property
    def _released(self) -> tuple[int, int]:
        """Blocks and snapshots that the cache has given up so far."""
        counters = self.cache.index.counters
        return counters.evicted_blocks, counters.evicted_snapshots

    def _note_released(self, active: Active, lane: Lane, before: tuple[int, int]) -> None:
        """Tell of what the cache gave up for a request's pages."""
        blocks, snapshots = (now - then for now, then in zip(self._released, before, strict=True))
        active.revoked += snapshots
        if blocks:
            message = f"KV lease grown to {len(lane.pages)} pages: {blocks} cached blocks released for it"
            self._publish(LogRecord("debug", message))

    def round_goal(self, active: Active) -> int:
        """Tokens that the request may have taken in after its next decode round."""
        taken = active.replay_to if active.lane is None else max(active.replay_to, active.lane.frontier)
        return taken + (1 if self._speculation is None else self._speculation.reach(active))

    # --- growth ------------------------------------------------------------------------------------

    def reserve(self, active: Active, tokens: int) -> bool:
        """Have pages for ``tokens`` tokens in all before a unit, pausing younger requests if need be.

        False: the request must wait for an older or a returning one.
        """
        if active.lane is not None and tokens <= PAGE_TOKENS * len(active.lane.pages):
            return True
        while active.lane is not None:
            released = self._released
            if self.cache.reserve(active.lane, tokens):
                self._note_released(active, active.lane, released)
                return True
            victim = self.scheduler.victim(active.ticket)
            if victim is None:
                return False
            self.pause(self.active[victim.id])
        return False

    # --- pauses ------------------------------------------------------------------------------------

    def pause(self, active: Active) -> None:
        """Take a resident's lane at a committed boundary; it keeps what it needs to come back."""
        assert active.lane is not None
        assert active.account is not None
        active.pauses += 1
        self._account.preemptions += 1
        active.account.preemptions += 1
        self._transitions.note(active, "pause_started")
        active.replay_to = max(active.replay_to, active.lane.frontier)
        self._leave(active, active.lane, Kind.TAP)
        self.scheduler.pause(active.ticket)
        active.paused_at = self._clock()
        self._transitions.note(active, "paused", "replay")
        self._changed = True

    def _resume_oldest(self, attempt: Callable[[Active, Callable[[], None]], None]) -> None:
        scheduler = self.scheduler
        if not scheduler.paused or any(ticket.spared for ticket in scheduler.residents):
            return
        active = self.active[scheduler.paused[0].id]
        goal = self._resume_goal(active)
        quote = self._room_to_resume(active, goal)
        if quote is not None:
            attempt(active, lambda: self._resume(active, quote, goal))

    def _room_to_resume(self, active: Active, goal: int) -> Quote | None:
        """Where nobody is older, the others make room; else a request takes only what they do not need."""
        scheduler = self.scheduler
        while True:
            oldest = scheduler.is_oldest(active.ticket)
            demand = 0 if oldest else self._demand()
            quote = self._fitting(active, goal, demand) if scheduler.lane_free else None
            victim = scheduler.victim(active.ticket) if oldest and quote is None else None
            if victim is None:
                return quote
            self.pause(self.active[victim.id])

    def _resume_goal(self, active: Active) -> int:
        """Tokens of the old frontier and one new unit."""
        if active.prefilled:
            return self.round_goal(active)
        return min(active.prompt, active.replay_to + self._program.options.prefill_chunk)

    def _resume(self, active: Active, quote: Quote, goal: int) -> None:
        assert active.account is not None
        self._transitions.note(active, "restore_started", "replay")
        lane = self._enter(active, quote, goal)
        if lane is None:
            return
        active.lane = lane
        active.ticket.rest = active.rest
        self._account.replay_restores += 1
        active.account.replay_restores += 1
        active.account.paused_s += self._clock() - active.paused_at
        self.scheduler.resume(active.ticket, self._next_phase(active))
        self._transitions.note(active, "restored", "replay")
        if active.ticket.phase is not Phase.REPLAY:
            self._rebuilt(active)

    def _rebuilt(self, active: Active) -> None:
        """The old frontier is reached: the request goes on where it was paused."""
        if self._speculation is not None and active.ticket.phase is Phase.DECODE:
            self._speculation.resume(active)
        self._transitions.note(active, "replay_complete", "replay")

    @staticmethod
    def _next_phase(active: Active) -> Phase:
        assert active.lane is not None
        if active.lane.frontier < active.replay_to:
            return Phase.REPLAY
        return Phase.DECODE if active.prefilled else Phase.PREFILL

    def replayed(self, active: Active) -> None:
        """A replay chunk was taken in; at the old frontier the request goes on where it was."""
        phase = self._next_phase(active)
        if phase is not Phase.REPLAY:
            self.scheduler.advance(active.ticket, phase)
            self._rebuilt(active)

    def progressed(self, active: Active) -> None:
        """The request has committed something new."""
        if active.ticket.spared:
            self.scheduler.progressed(active.ticket)
            self._transitions.note(active, "recovery_complete", "replay")
            self._changed = True

    # --- the end -----------------------------------------------------------------------------------

    def release(self, active: Active, whole: bool) -> None:
        """Forget a request and free its lane; ``whole``: its state is sound and may serve others."""
        self.scheduler.remove(active.ticket)
        del self.active[active.request.id]
        self._coalescing.forget(active)
        if active.lane is not None:
            self._leave(active, active.lane, Kind.ENDPOINT if whole else None)
        if active.pauses:
            self._transitions.note(active, "terminal")
        self._changed = True

    def _leave(self, active: Active, lane: Lane, kind: Kind | None) -> None:
        """Give the lane back; what it holds becomes a snapshot of this kind (None: it is not sound)."""
        active.lane = None
        try:
            if self._speculation is not None:
                self._speculation.end(lane, sound=kind is not None)
        except BaseException:
            kind = None
            raise
        finally:
            if kind is None:
                self.cache.abandon(active.lineage)
            else:
                self.cache.leave(active.lineage, lane, kind)
            self._program.close_lane(lane)
