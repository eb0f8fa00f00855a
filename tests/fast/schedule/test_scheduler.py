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


class History(RuleBasedStateMachine):
    """Submissions, admissions, cycles and ends in any order.

    The model keeps plain lists: who waits (oldest first), who is resident (in order of admission), how often
    each waiting ticket saw a younger one enter, and whose turns came since each prefill's own last one.
    """

    tickets = Bundle("tickets")

    @initialize(lanes=st.integers(1, 8), pages=st.integers(1, 40))
    def start(self, lanes: int, pages: int) -> None:
        self.scheduler = Scheduler(lanes, pages)
        self.waiting: list[Ticket] = []
        self.residents: list[Ticket] = []
        self.passed: Counter[str] = Counter()
        self.turns: dict[str, list[str]] = {}
        self.count = 0

    @rule(target=tickets, share=st.floats(0, 1))
    def submit(self, share: float) -> Ticket:
        self.count += 1
        ticket = Ticket(str(self.count), max(1, round(share * self.scheduler.pages)))
        self.scheduler.submit(ticket)
        self.waiting.append(ticket)
        return ticket

    @rule(target=tickets, shares=st.lists(st.floats(0, 1), min_size=3, max_size=12))
    def submit_many(self, shares: list[float]) -> object:
        return multiple(*(self.submit(share) for share in shares))

    @rule()
    def admit(self) -> None:
        expected = self._expected_admission()
        assert self.scheduler.admit() == expected
        for ticket in expected:
            self.turns[ticket.id] = []

    def _expected_admission(self) -> list[Ticket]:
        """By the rules: every ticket is asked, oldest first, whether it may enter now."""
        lanes, admitted = self.scheduler.lanes, []
        for ticket in list(self.waiting):
            older = self.waiting[: self.waiting.index(ticket)]
            free = self.scheduler.pages - sum(resident.pages for resident in self.residents)
            may_pass = len(older) <= lanes and all(self.passed[t.id] < lanes for t in older)
            if may_pass and ticket.pages <= free and len(self.residents) < lanes:
                self.passed.update(t.id for t in older)
                self.waiting.remove(ticket)
                self.residents.append(ticket)
                admitted.append(ticket)
        return admitted

    @rule()
    def cycle(self) -> None:
        cycle = self.scheduler.next()
        decoding = [ticket for ticket in self.residents if ticket.phase is Phase.DECODE]
        prefilling = [ticket for ticket in self.residents if ticket.phase is Phase.PREFILL]
        assert list(cycle.decode) == decoding
        if cycle.prefill is None:
            assert not prefilling
            return
        assert cycle.prefill in prefilling
        self.turns[cycle.prefill.id] = []
        for ticket in prefilling:
            if ticket is not cycle.prefill:
                seen = self.turns[ticket.id]
                assert cycle.prefill.id not in seen, "one prompt got two chunks while another waited"
                seen.append(cycle.prefill.id)
                assert len(seen) < self.scheduler.lanes

    @rule(ticket=tickets)
    def finish_prefill(self, ticket: Ticket) -> None:
        if ticket.phase is Phase.PREFILL:
            self.scheduler.prefilled(ticket)
            assert ticket.phase is Phase.DECODE

    @rule(ticket=consumes(tickets))
    def end(self, ticket: Ticket) -> None:
        """Finished, failed or cancelled, whatever phase it is in."""
        self.scheduler.remove(ticket)
        (self.waiting if ticket in self.waiting else self.residents).remove(ticket)
        assert ticket.phase is Phase.DONE

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler = self.scheduler
        assert list(scheduler.waiting) == self.waiting
        assert scheduler.residents == self.residents
        assert len(self.residents) <= scheduler.lanes
        assert 0 <= scheduler.free_pages == scheduler.pages - sum(t.pages for t in self.residents)
        assert all(self.passed[ticket.id] <= scheduler.lanes for ticket in self.waiting)
        assert scheduler.idle == (not self.waiting and not self.residents)

    def teardown(self) -> None:
        """Whatever the history, ending residents one by one lets everybody in: no deadlock, no starvation."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(len(self.waiting) + len(self.residents)):
            self.admit()
            assert self.residents, "tickets wait in front of an empty engine"
            self.end(self.residents[0])
        assert self.scheduler.idle
        assert self.scheduler.next() == Cycle((), None)


TestHistory = History.TestCase


def scheduler_with(*pages: int, lanes: int = 2, total: int = 8) -> tuple[Scheduler, list[Ticket]]:
    scheduler = Scheduler(lanes, total)
    tickets = [Ticket(str(index), count) for index, count in enumerate(pages)]
    for ticket in tickets:
        scheduler.submit(ticket)
    return scheduler, tickets


def ids(tickets: list[Ticket]) -> list[str]:
    return [ticket.id for ticket in tickets]


def test_equal_requests_enter_in_order_of_arrival() -> None:
    scheduler, tickets = scheduler_with(4, 4, 4, lanes=1)
    for ticket in tickets:
        assert scheduler.admit() == [ticket]
        assert scheduler.admit() == []
        scheduler.remove(ticket)


@pytest.mark.parametrize("lanes", [2, 3, 8])
def test_a_large_request_is_overtaken_by_as_many_as_there_are_lanes_and_no_more(lanes: int) -> None:
    scheduler, (holder, *_) = scheduler_with(1, lanes=lanes, total=20)
    scheduler.admit()
    large = Ticket("large", 20)
    scheduler.submit(large)
    passed = 0
    for index in range(50):
        small = Ticket(f"small-{index}", 1)
        scheduler.submit(small)
        passed += len(scheduler.admit())
        if small.phase is Phase.PREFILL:
            scheduler.remove(small)
    assert passed == lanes
    scheduler.remove(holder)
    assert scheduler.admit() == [large]


def test_a_prefill_is_not_starved_by_prompts_that_come_and_go() -> None:
    scheduler, (long, *_) = scheduler_with(1, lanes=3, total=100)
    scheduler.admit()
    served = Counter[str]()
    for index in range(60):
        # Lanes empty and fill so that any rule by position or count would meet the newcomers only.
        for part in range(1 + index % 2):
            scheduler.submit(Ticket(f"{index}.{part}", 1))
        scheduler.admit()
        chosen = scheduler.next().prefill
        assert chosen is not None
        served[chosen.id] += 1
        for ticket in [t for t in scheduler.residents if t is not long and (t is chosen or index % 2)]:
            scheduler.remove(ticket)
    assert served[long.id] >= 60 // 3


def test_a_short_prompt_gets_its_turn_before_a_long_one_ends() -> None:
    scheduler, (long, short) = scheduler_with(4, 1)
    scheduler.admit()
    assert [scheduler.next().prefill for _ in range(4)] == [long, short, long, short]
    scheduler.prefilled(short)
    assert [scheduler.next() for _ in range(2)] == [Cycle((short,), long)] * 2


def test_a_request_joins_the_batch_after_its_own_prefill() -> None:
    scheduler, (first, second) = scheduler_with(1, 1)
    scheduler.admit()
    assert scheduler.next().decode == ()
    scheduler.prefilled(first)
    assert scheduler.next().decode == (first,)
    scheduler.prefilled(second)
    assert scheduler.next().decode == (first, second)


def test_a_batch_has_no_row_of_one_that_ended() -> None:
    scheduler, tickets = scheduler_with(1, 1, 1, lanes=3)
    scheduler.admit()
    for ticket in tickets:
        scheduler.prefilled(ticket)
    scheduler.remove(tickets[1])
    assert scheduler.next() == Cycle((tickets[0], tickets[2]), None)
