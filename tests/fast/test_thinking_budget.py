"""The fast worker at a thinking budget: a forced id is committed and is the next round's input."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ninfer.engine.requests import ThinkingBudget
from ninfer.fast.program.program import Row
from tests.fast.fake_program import Bench, finish, token_ids, whole_answer

CLOSING = (25, 24, 23)


def test_forced_ids_take_the_place_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, inputs = Bench(), list[int]()
    inner = bench.program.round

    def recording(rows: Sequence[Row]) -> list[int]:
        inputs.extend(row.token for row in rows)
        return inner(rows)

    monkeypatch.setattr(bench.program, "round", recording)
    budget = ThinkingBudget(2, CLOSING)
    bench.submit(3, max_tokens=8, initial_channel="reasoning", thinking_budget=budget)
    bench.run()
    drawn = whole_answer(3, 8)
    ids = token_ids(bench.of(3))
    assert ids == [*drawn[:2], *CLOSING, *drawn[5:]]
    assert inputs == ids[:-1]
    assert finish(bench.of(3)).usage.completion_tokens == 8


def test_neighbours_are_left_alone() -> None:
    bench = Bench(lanes=2)
    bench.submit(3, max_tokens=8, initial_channel="reasoning", thinking_budget=ThinkingBudget(1, CLOSING))
    bench.submit(5, max_tokens=8, initial_channel="reasoning")
    bench.run()
    assert token_ids(bench.of(3))[1:4] == list(CLOSING)
    assert token_ids(bench.of(5)) == whole_answer(5, 8)
