"""How many neural drafts pay: the width with the most tokens per second, from measured cost and acceptance.

Owns the choice (``--adaptive-mtp``). Acceptance is kept per place in the chain, given that the place was
reached; costs per batch size and width, as whole rounds, drafting included. Rules: ``spec/speculation.yaml``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ninfer import spec

# What a place's acceptance is taken for at first, and for how many observations that counts.
_PRIOR, _PRIOR_COUNT = 0.8, 3
# A width's first cost is the least of so many.
_TIMINGS = 3
# Of rounds without drafts one in so many is timed, and at least one between two trials.
_TIMED_ROUNDS = 64


@dataclass(slots=True)
class _Costs:
    """Seconds of a round of one batch size by width; ``rounds`` since another width was last tried.

    ``ranked``: the best width and the second, until something is learned that may change them. ``timed``
    counts the rounds behind each of the ``seconds``, ``trials`` those of widths that were not the best.
    """

    wait: int
    seconds: dict[int, float] = field(default_factory=dict)
    rounds: int = 0
    trying: int | None = None
    ranked: tuple[int, int] | None = None
    timed: dict[int, int] = field(default_factory=dict)
    trials: int = 0

    @property
    def period(self) -> int:
        """Rounds without drafts from one that is timed to the next."""
        return min(_TIMED_ROUNDS, self.wait // 2)


@dataclass(slots=True)
class _Place:
    """Running share of accepted drafts at one place of the chain, and how often it was reached."""

    accepted: float = _PRIOR
    reached: int = 0


class WidthChooser:
    """Chooses among 0..``most`` drafts."""

    def __init__(self, most: int) -> None:
        rules = spec.document("speculation")["adaptive"]
        self._most = most
        self._acceptance_decay = float(rules["acceptance_decay"])
        self._trial_weight, self._cost_decay = float(rules["trial_weight"]), float(rules["cost_decay"])
        self._retry, self._longest = int(rules["retry_rounds"]), int(rules["maximum_retry_rounds"])
        self._places = [_Place() for _ in range(most)]
        self._costs: dict[int, _Costs] = {}

    def choose(self, rows: int) -> int:
        """The drafts per row of the next round over ``rows`` requests."""
        costs = self._costs.get(rows)
        if costs is None:
            costs = self._costs[rows] = _Costs(self._retry)
        costs.trying = None
        unknown = self._unknown(costs)
        if unknown is not None:
            return unknown
        best, second = self._ranked(costs)
        costs.rounds += 1
        if costs.rounds >= costs.wait:
            costs.rounds, costs.trials = 0, costs.trials + 1
            # In turn the second best and no drafts at all: whatever was slow once may not be so for ever.
            costs.trying = second if best == 0 or costs.trials % 2 else 0
            return costs.trying
        return best

    def needs_cost(self, rows: int) -> bool:
        """Whether the time of a round without drafts is worth noting: it says little that is new."""
        costs = self._costs[rows]
        return costs.timed.get(0, 0) < _TIMINGS or costs.trying == 0 or costs.rounds % costs.period == 0

    def pass_over(self, rows: int, most: int) -> int:
        """Rounds to come, ``most`` at most, that have no drafts and need not be timed.

        They count as chosen from now on. Only after a choice of 0, whose time was noted if it was needed.
        """
        costs = self._costs[rows]
        if self._unknown(costs) is not None or self._ranked(costs)[0]:
            return 0
        due = min(costs.wait - costs.rounds, costs.period - costs.rounds % costs.period)
        passed = max(0, min(most, due - 1))
        costs.rounds += passed
        return passed

    def note(self, rows: int, width: int, seconds: float, accepted: Sequence[tuple[int, int]]) -> None:
        """A round of this width took so long; per row, its (drafted, accepted) neural drafts."""
        costs = self._costs.setdefault(rows, _Costs(self._retry))
        trying = costs.trying is not None and costs.trying == width
        costs.ranked = None
        for drafted, kept in accepted:
            for number in range(min(drafted, kept + 1, self._most)):
                self._learn(self._places[number], number < kept, trying)
        known = costs.seconds.get(width)
        costs.timed[width] = costs.timed.get(width, 0) + 1
        if known is None:
            costs.seconds[width] = seconds
        elif costs.timed[width] <= _TIMINGS or (trying and seconds < known):
            costs.seconds[width] = min(known, seconds)
        else:  # a spike is not the width's own
            costs.seconds[width] = known + self._cost_decay * (min(seconds, 1.5 * known) - known)
        if trying:
            promising = self._ranking(costs)[0] == width or any(kept for _, kept in accepted)
            costs.wait = self._retry if promising else min(2 * costs.wait, self._longest)

    def expected(self, width: int) -> float:
        """Tokens that a round of ``width`` drafts commits per row."""
        total, reach, share = 1.0, 1.0, 1.0
        for place in self._places[:width]:
            # A place that was never reached is taken for one like that before it.
            share = place.accepted if place.reached else share
            reach *= share
            total += reach
        return total

    def _learn(self, place: _Place, accepted: bool, trying: bool) -> None:
        """First a plain mean, then a running one; a rare trial says more about now than what came before."""
        place.reached += 1
        mean = 1 / (place.reached + _PRIOR_COUNT)
        weight = max(self._acceptance_decay, mean, self._trial_weight if trying else 0.0)
        place.accepted += weight * (float(accepted) - place.accepted)

    def _unknown(self, costs: _Costs) -> int | None:
        """Which of the two ends has yet to be timed: everything between is estimated from them."""
        return next((width for width in (self._most, 0) if costs.timed.get(width, 0) < _TIMINGS), None)

    def _ranked(self, costs: _Costs) -> tuple[int, int]:
        """The best width and the second."""
        if costs.ranked is None:
            best, second = self._ranking(costs)[:2]
            costs.ranked = best, second
        return costs.ranked

    def _ranking(self, costs: _Costs) -> list[int]:
        """Every width, most tokens per second first; of equal ones the narrower."""
        rates = {width: self.expected(width) / self._cost(costs, width) for width in range(self._most + 1)}
        return sorted(rates, key=lambda width: (-rates[width], width))

    def _cost(self, costs: _Costs, width: int) -> float:
        """Measured, or on the line between the nearest measured widths."""
        seconds = costs.seconds
        if width in seconds:
            return seconds[width]
        below = max(known for known in seconds if known < width)
        above = min(known for known in seconds if known > width)
        share = (width - below) / (above - below)
        return seconds[below] + share * (seconds[above] - seconds[below])
