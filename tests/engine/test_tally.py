"""Counts of drafts by place follow from counts by length."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.tally import Tally

WIDEST = 15
proposals = st.integers(0, WIDEST).flatmap(
    lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted))
)


@given(st.lists(proposals, max_size=40))
def test_places_count_the_proposals_that_reached_them(rounds: list[tuple[int, int]]) -> None:
    tally = Tally("mtp", 3, WIDEST)
    for drafted, accepted in rounds:
        tally.add(drafted, accepted, copied=False)
    usage = tally.usage
    places = range(WIDEST)
    assert usage.drafted_per_position == tuple(sum(d > place for d, _ in rounds) for place in places)
    assert usage.accepted_per_position == tuple(sum(a > place for _, a in rounds) for place in places)
    assert usage.fallback_steps == sum(d == 0 for d, _ in rounds)
    assert usage.drafted_tokens == sum(d for d, _ in rounds)
    assert usage.accepted_tokens == sum(a for _, a in rounds)
