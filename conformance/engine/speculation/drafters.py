"""Drafters for tests: they know the answer and are right as often as they are told to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ninfer.fast.draft.ngram.index import Tokens
from ninfer.fast.program.mtp_lanes import Text, Wish
from ninfer.fast.program.program import Lane
from tests.support.nano import VOCABULARY


@dataclass(slots=True, eq=False)
class KnowingDrafter:
    """Proposes the known ``answers`` of each lane's request, each token wrong with probability ``wrong``.

    ``assign`` says which request a slot serves; its answer begins after ``prompt`` tokens.
    """

    wrong: float
    random: np.random.Generator
    answers: dict[str, list[int]]
    untold: int = 5
    _owners: dict[int, tuple[str, int]] = field(default_factory=dict)

    def assign(self, slot: int, request: str, prompt: int) -> None:
        self._owners[slot] = (request, prompt)

    def begin(self, lane: Lane, text: Text) -> None:
        pass

    def committed(self, lane: Lane, first: int, outputs: Sequence[int]) -> None:
        assert first >= 0
        assert len(outputs) > 0

    def settle(self, lane: Lane) -> None:
        pass

    def forget(self, lane: Lane) -> None:
        pass

    def draft(self, wishes: Sequence[Wish]) -> list[Tokens]:
        return [self._draft(wish) for wish in wishes]

    def _draft(self, wish: Wish) -> Tokens:
        name, prompt = self._owners[wish.lane.slot]
        begin = wish.lane.frontier - prompt + 1
        right = np.array(self.answers[name][begin : begin + wish.count], np.int32)
        spoilt = self.random.random(len(right)) < self.wrong
        return np.where(spoilt, (right + 1) % VOCABULARY, right).astype(np.int32)
