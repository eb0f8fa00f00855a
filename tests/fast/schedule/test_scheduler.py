"""The scheduler against a naive model of its rules, over drawn histories, and its promises one by one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from ninfer.fast.schedule.scheduler import Cycle, Phase, Scheduler, Ticket


class Pool:
    """Pages as tickets take them: all that one needs when it enters."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.wanted: dict[str, int] = {}
        self.held: dict[str, int] = {}

    def ticket(self, name: str, pages: int) -> Ticket:
        self.wanted[name] = pages
        return Ticket(name)

    def bind(self, ticket: Ticket) -> bool:
        if self.wanted[ticket.id] > self.pages - sum(self.held.values()):
            return False
        self.held[ticket.id] = self.wanted[ticket.id]
        return True


class History(RuleBasedStateMachine):
    """Submissions, admissions, cycles, pauses and ends in any order.

    The model keeps plain lists: who waits (oldest first), who is resident and who is paused (in order of
    submission), how often each waiting ticket saw a younger one enter, and whose turns came since each
    prefill's own last one.
    """

    tickets = Bundle("tickets")

    @initialize(lanes=st.integers(1, 8), pages=st.integers(1, 40))
    def start(self, lanes: int, pages: int) -> None:
        self.scheduler, self.pool = Scheduler(lanes), Pool(pages)
        self.waiting: list[Ticket] = []
        self.residents: list[Ticket] = []
        self.paused: list[Ticket] = []
        self.passed: Counter[str] = Counter()
        self.turns: dict[str, list[str]] = {}
        self.count = 0

    @rule(target=tickets, share=st.floats(0, 1), rest=st.integers(1, 5))
    def submit(self, share: float, rest: int = 1) -> Ticket:
        self.count += 1
        ticket = self.pool.ticket(str(self.count), max(1, round(share * self.pool.pages)))
        ticket.rest = rest
        self.scheduler.submit(ticket)
        self.waiting.append(ticket)
        return ticket

    @rule(target=tickets, shares=st.lists(st.floats(0, 1), min_size=3, max_size=12))
    def submit_many(self, shares: list[float]) -> object:
        return multiple(*(self.submit(share) for share in shares))

    @rule()
    def admit(self) -> None:
        expected = self._expected_admission()
        self.scheduler.admit(self.pool.bind)
        entered = [ticket for ticket in self.scheduler.residents if ticket not in self.residents]
        assert sorted(entered, key=id) == sorted(expected, key=id)
        self.residents = _by_age([*self.residents, *expected])
        for ticket in expected:
            self.turns[ticket.id] = []

    def _expected_admission(self) -> list[Ticket]:
        """By the rules: every ticket is asked, oldest first, whether it may enter now."""
        lanes, admitted = self.scheduler.lanes, list[Ticket]()
        free = self.pool.pages - sum(self.pool.held.values())
        for ticket in list(self.waiting):
            older = self.waiting[: self.waiting.index(ticket)]
            wanted = self.pool.wanted[ticket.id]
            may_pass = len(older) <= lanes and all(self.passed[t.id] < lanes for t in older)
            if may_pass and wanted <= free and len(self.residents) + len(admitted) < lanes:
                self.passed.update(t.id for t in older)
                self.waiting.remove(ticket)
                free -= wanted
                admitted.append(ticket)
        return admitted

    @rule(rest=st.integers(0, 5))
    def cycle(self, rest: int) -> None:
        cycle = self.scheduler.next()
        decoding = [ticket for ticket in self.residents if ticket.phase is Phase.DECODE]
        chunked = [ticket for ticket in self.residents if ticket.phase is not Phase.DECODE]
        assert list(cycle.decode) == decoding
        assert sorted(cycle.chunks, key=id) == sorted(chunked, key=id)
        if not chunked:
            return
        chosen = cycle.chunks[0]
        assert chosen.spared or not any(ticket.spared for ticket in chunked)
        self.scheduler.served(chosen)
        chosen.rest = rest
        self.turns[chosen.id] = []
        for ticket in chunked:
            if ticket is not chosen and not chosen.spared:
                self.turns[ticket.id].append(chosen.id)
                assert len(self.turns[ticket.id]) < self.scheduler.lanes

    @rule(ticket=tickets)
    def finish_chunks(self, ticket: Ticket) -> None:
        if ticket.phase in (Phase.PREFILL, Phase.REPLAY):
            self.scheduler.advance(ticket, Phase.DECODE)
            assert ticket.phase is Phase.DECODE

    @rule(ticket=tickets)
    def need_room(self, ticket: Ticket) -> None:
        """A resident needs memory: the youngest of those younger than it, and not spared, gives way."""
        if ticket not in self.residents:
            return
        younger = [t for t in self.residents if t.order > ticket.order and not t.spared]
        victim = self.scheduler.victim(ticket)
        assert victim is (younger[-1] if younger else None)
        if victim is not None:
            self.scheduler.pause(victim)
            self.residents.remove(victim)
            self.paused = _by_age([*self.paused, victim])
            del self.pool.held[victim.id]

    @rule(decoding=st.booleans())
    def resume(self, decoding: bool) -> None:
        """The oldest paused ticket comes back where it fits."""
        if self.paused and self.scheduler.lane_free and self.pool.bind(self.paused[0]):
            ticket = self.paused.pop(0)
            self.scheduler.resume(ticket, Phase.DECODE if decoding else Phase.REPLAY)
            self.residents = _by_age([*self.residents, ticket])
            self.turns[ticket.id] = []
            assert ticket.spared

    @rule(ticket=tickets)
    def progress(self, ticket: Ticket) -> None:
        self.scheduler.progressed(ticket)
        # What stood behind it in the rotation starts counting anew.
        self.turns = {name: [] for name in self.turns}

    @rule(ticket=consumes(tickets))
    def end(self, ticket: Ticket) -> None:
        """Finished, failed or cancelled, whatever phase it is in."""
        self.scheduler.remove(ticket)
        for tickets in (self.waiting, self.residents, self.paused):
            if ticket in tickets:
                tickets.remove(ticket)
        self.pool.held.pop(ticket.id, None)
        assert ticket.phase is Phase.DONE

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler = self.scheduler
        assert list(scheduler.waiting) == self.waiting
        assert scheduler.residents == self.residents
        assert scheduler.paused == self.paused
        assert len(self.residents) <= scheduler.lanes
        assert all(self.passed[ticket.id] <= scheduler.lanes for ticket in self.waiting)
        assert scheduler.idle == (not self.waiting and not self.residents and not self.paused)
        assert not any(ticket.spared for ticket in (*self.waiting, *self.paused))

    def teardown(self) -> None:
        """Whatever the history, ending residents one by one lets everybody in: no deadlock, no starvation."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(len(self.waiting) + len(self.residents) + len(self.paused)):
            self.resume(False)
            self.admit()
            assert self.residents, "tickets wait in front of an empty engine"
            self.end(self.residents[0])
        assert self.scheduler.idle
        assert self.scheduler.next() == Cycle((), ())


def _by_age(tickets: list[Ticket]) -> list[Ticket]:
    return sorted(tickets, key=lambda ticket: ticket.order)


TestHistory = History.TestCase


def scheduler_with(*pages: int, lanes: int = 2, total: int = 8) -> tuple[Scheduler, Pool, list[Ticket]]:
    scheduler, pool = Scheduler(lanes), Pool(total)
    tickets = [pool.ticket(str(index), count) for index, count in enumerate(pages)]
    for ticket in tickets:
        scheduler.submit(ticket)
    return scheduler, pool, tickets


def end(scheduler: Scheduler, pool: Pool, ticket: Ticket) -> None:
    scheduler.remove(ticket)
    pool.held.pop(ticket.id, None)


def run_chunk(scheduler: Scheduler, rest: int = 0) -> Ticket:
    """The ticket whose turn it is now; ``rest`` is left of it afterwards."""
    chosen = scheduler.next().chunks[0]
    scheduler.served(chosen)
    chosen.rest = rest
    return chosen


def test_equal_requests_enter_in_order_of_arrival() -> None:
    scheduler, pool, tickets = scheduler_with(4, 4, 4, lanes=1)
    for ticket in tickets:
        scheduler.admit(pool.bind)
        assert scheduler.residents == [ticket]
        scheduler.admit(pool.bind)
        assert scheduler.residents == [ticket]
        end(scheduler, pool, ticket)


@pytest.mark.parametrize("lanes", [2, 3, 8])
def test_a_large_request_is_overtaken_by_as_many_as_there_are_lanes_and_no_more(lanes: int) -> None:
    scheduler, pool, (holder, *_) = scheduler_with(1, lanes=lanes, total=20)
    scheduler.admit(pool.bind)
    large = pool.ticket("large", 20)
    scheduler.submit(large)
    passed = 0
    for index in range(50):
        small = pool.ticket(f"small-{index}", 1)
        scheduler.submit(small)
        before = len(scheduler.residents)
        scheduler.admit(pool.bind)
        passed += len(scheduler.residents) - before
        if small.phase is Phase.PREFILL:
            end(scheduler, pool, small)
    assert passed == lanes
    end(scheduler, pool, holder)
    scheduler.admit(pool.bind)
    assert scheduler.residents == [large]


def test_a_ticket_that_fails_while_it_is_bound_neither_enters_nor_blocks() -> None:
    scheduler, pool, (first, second) = scheduler_with(1, 1)

    def bind(ticket: Ticket) -> bool:
        if ticket is first:
            scheduler.remove(ticket)
            return False
        return pool.bind(ticket)

    scheduler.admit(bind)
    assert scheduler.residents == [second]
    assert not scheduler.waiting


def test_a_prefill_is_not_starved_by_prompts_that_come_and_go() -> None:
    scheduler, pool, (long, *_) = scheduler_with(1, lanes=3, total=100)
    scheduler.admit(pool.bind)
    served = Counter[str]()
    for index in range(60):
        # Lanes empty and fill so that any rule by position or count would meet the newcomers only.
        for part in range(1 + index % 2):
            scheduler.submit(pool.ticket(f"{index}.{part}", 1))
        scheduler.admit(pool.bind)
        chosen = run_chunk(scheduler)
        served[chosen.id] += 1
        for ticket in [t for t in scheduler.residents if t is not long and (t is chosen or index % 2)]:
            end(scheduler, pool, ticket)
    assert served[long.id] >= 60 // 3


def test_a_short_prompt_gets_its_turn_before_a_long_one_ends() -> None:
    scheduler, pool, (long, short) = scheduler_with(4, 1)
    scheduler.admit(pool.bind)
    assert [run_chunk(scheduler) for _ in range(4)] == [long, short, long, short]
    scheduler.advance(short, Phase.DECODE)
    assert scheduler.next() == Cycle((short,), (long,))


def test_the_shortest_rest_comes_first_until_others_have_waited_for_their_chunks() -> None:
    scheduler, pool, (long, short) = scheduler_with(1, 1, lanes=3)
    scheduler.admit(pool.bind)
    long.rest, short.rest = 90, 50
    order = [run_chunk(scheduler, scheduler.next().chunks[0].rest) for _ in range(6)]
    assert order == [short, short, long, short, short, long]
    scheduler.submit(pool.ticket("third", 1))
    scheduler.admit(pool.bind)
    third = scheduler.residents[-1]
    third.rest = 70
    order = [run_chunk(scheduler, scheduler.next().chunks[0].rest) for _ in range(6)]
    assert order == [short, long, third, short, long, third], "where all lanes prefill nobody can be passed"


def test_a_short_prompt_passes_a_long_one_that_has_just_been_served() -> None:
    scheduler, pool, (long,) = scheduler_with(4)
    scheduler.admit(pool.bind)
    assert run_chunk(scheduler, rest=8000) is long
    short = pool.ticket("short", 1)
    short.rest = 100
    scheduler.submit(short)
    scheduler.admit(pool.bind)
    assert run_chunk(scheduler, rest=50) is short
    assert [run_chunk(scheduler, rest=7000), run_chunk(scheduler)] == [long, short]


def test_a_prompt_that_lacks_memory_does_not_hold_up_another() -> None:
    scheduler, pool, (first, second) = scheduler_with(4, 1)
    scheduler.admit(pool.bind)
    assert scheduler.next().chunks == (first, second)
    scheduler.served(second)  # the first one's chunk did not fit
    assert scheduler.next().chunks == (first, second)


def test_a_request_joins_the_batch_after_its_own_prefill() -> None:
    scheduler, pool, (first, second) = scheduler_with(1, 1)
    scheduler.admit(pool.bind)
    assert scheduler.next().decode == ()
    scheduler.advance(first, Phase.DECODE)
    assert scheduler.next().decode == (first,)
    scheduler.advance(second, Phase.DECODE)
    assert scheduler.next().decode == (first, second)


def test_a_batch_has_no_row_of_one_that_ended() -> None:
    scheduler, pool, tickets = scheduler_with(1, 1, 1, lanes=3)
    scheduler.admit(pool.bind)
    for ticket in tickets:
        scheduler.advance(ticket, Phase.DECODE)
    scheduler.remove(tickets[1])
    assert scheduler.next() == Cycle((tickets[0], tickets[2]), ())


def test_paused_requests_come_back_in_order_of_submission() -> None:
    scheduler, pool, (first, second, third) = scheduler_with(1, 1, 1, lanes=3)
    scheduler.admit(pool.bind)
    for ticket in (third, second):
        assert scheduler.victim(first) is ticket
        scheduler.pause(ticket)
    assert scheduler.victim(first) is None
    assert scheduler.paused == [second, third]
    scheduler.resume(second, Phase.REPLAY)
    assert scheduler.next().chunks == (second, first), "one that comes back goes first"
    assert scheduler.victim(first) is None, "and is spared until it has done something new"
    scheduler.progressed(second)
    assert scheduler.victim(first) is second
