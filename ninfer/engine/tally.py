"""Counts what drafts came to, for one request or for all."""

from __future__ import annotations

import itertools

from ninfer.engine.events import DraftUsage
from ninfer.engine.statistics import DraftCounters


class Tally:
    """``window`` is the widest neural proposal, ``widest`` the widest of any kind."""

    def __init__(self, backend: str, window: int, widest: int) -> None:
        self._backend, self._window = backend, window
        # Proposals by their length, and by how many of their drafts were accepted.
        self._drafted, self._accepted = [0] * (widest + 1), [0] * (widest + 1)
        self._rounds = self._fallbacks = self._all_drafted = self._all_accepted = 0
        self._ngram_rounds = self._ngram_drafted = self._ngram_accepted = 0

    def add_fallbacks(self, rounds: int) -> None:
        """So many rounds of one row were without drafts."""
        self._fallbacks += rounds

    def add(self, drafted: int, accepted: int, copied: bool) -> None:
        """One round of one row: its drafts and how many of them were committed."""
        if not drafted:
            self.add_fallbacks(1)
            return
        self._rounds += 1
        self._all_drafted += drafted
        self._all_accepted += accepted
        self._drafted[drafted] += 1
        self._accepted[accepted] += 1
        if copied:
            self._ngram_rounds += 1
            self._ngram_drafted += drafted
            self._ngram_accepted += accepted

    @property
    def counters(self) -> DraftCounters:
        """What of them stands in the engine's statistics."""
        return DraftCounters(self._rounds, self._all_drafted, self._all_accepted, self._fallbacks)

    @property
    def usage(self) -> DraftUsage:
        """The counts so far."""
        return DraftUsage(
            backend=self._backend,
            draft_window=self._window,
            rounds=self._rounds,
            drafted_tokens=self._all_drafted,
            accepted_tokens=self._all_accepted,
            fallback_steps=self._fallbacks,
            drafted_per_position=_longer(self._drafted),
            accepted_per_position=_longer(self._accepted),
            ngram_rounds=self._ngram_rounds,
            ngram_drafted_tokens=self._ngram_drafted,
            ngram_accepted_tokens=self._ngram_accepted,
        )


def _longer(by_length: list[int]) -> tuple[int, ...]:
    """For every place of a chain, how many were longer than that."""
    return tuple(itertools.accumulate(reversed(by_length[1:])))[::-1]
