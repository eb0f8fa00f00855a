"""Concurrent prompts with a new prefix in common: the later one waits for the earlier one's snapshot.

Waiting pays when the prefix is longer than what the cache offers, saves more than the sibling's extra chunk
costs, and the sibling will be there soon. Owns the judgement and who waits for whom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer import spec
from ninfer.fast.active import Active
from ninfer.fast.ops.control import PAGE_TOKENS
from ninfer.fast.prefix.cost import CostModel
from ninfer.fast.prefix.snapshots import Kind
from ninfer.fast.prefix.taps import Tap


@dataclass(frozen=True, slots=True, eq=False)
class _Wait:
    sibling: Active
    place: int
    since: float


class Coalescing:
    """``queue_limit_s`` bounds how long a wait may be predicted to take; ``enabled`` as the cache is."""

    def __init__(self, costs: CostModel, queue_limit_s: float | None, enabled: bool) -> None:
        table = spec.document("cache")["coalescing"]
        limit = table["unlimited_queue_s"] if queue_limit_s is None else queue_limit_s
        self._longest_s = float(table["queue_share"]) * limit / float(table["wait_factor"])
        self._costs, self._enabled = costs, enabled
        self._waits: dict[str, _Wait] = {}
        self._waited: dict[str, float] = {}

    def waits(self, active: Active, offered: int, siblings: Sequence[Active], now: float) -> bool:
        """Whether a request to which the cache offers ``offered`` tokens should wait at this border."""
        wait = self._waits.get(active.request.id)
        if wait is not None:
            if self._goes_on(wait):
                return True
            self._end(active, now)
        if not self._enabled or active.request.id in self._waited:
            return False
        for sibling in siblings:
            place = self._meeting(active, offered, sibling)
            if place is not None:
                self._waits[active.request.id] = _Wait(sibling, place, now)
                return True
        return False

    def waited(self, active: Active, now: float) -> float:
        """Seconds for which the request has waited for siblings; it no longer does."""
        self._end(active, now)
        return self._waited.pop(active.request.id, 0.0)

    def forget(self, active: Active) -> None:
        """The request has ended."""
        self._waits.pop(active.request.id, None)
        self._waited.pop(active.request.id, None)

    def _end(self, active: Active, now: float) -> None:
        wait = self._waits.pop(active.request.id, None)
        if wait is not None:
            self._waited[active.request.id] = now - wait.since

    @staticmethod
    def _goes_on(wait: _Wait) -> bool:
        lane = wait.sibling.lane
        return lane is not None and lane.frontier < wait.place

    def _meeting(self, active: Active, offered: int, sibling: Active) -> int | None:
        """Where to wait for the sibling, which will leave a snapshot there; None: not at all."""
        lane, schedule = sibling.lane, sibling.lineage.schedule
        assert lane is not None
        assert schedule is not None
        shared = min(
            active.lineage.content.shared_with(sibling.lineage.content), active.prompt - 1, sibling.prompt - 1
        )
        place = shared // PAGE_TOKENS * PAGE_TOKENS
        planned = max((tap.place for tap in schedule.waiting if tap.exact and tap.place <= shared), default=0)
        gap_s = self._costs.prefill_s(planned, place - planned) if place > planned else 0.0
        new = not (planned > lane.frontier and gap_s <= self._costs.chunk_s)
        if not new:
            place = planned
        saved = self._costs.prefill_s(offered, place - offered) if place > offered else 0.0
        if place <= lane.frontier or saved <= self._costs.chunk_s:
            return None
        if self._costs.prefill_s(lane.frontier, place - lane.frontier) > self._longest_s:
            return None
        if new:
            schedule.add(Tap(place, exact=True, kind=Kind.TAP, source="sibling"))
        return place
