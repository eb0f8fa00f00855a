"""What drafts of the prediction head would come to: the oracle of acceptance.

The reference decodes token by token, drafts or not, so a drafter cannot change its answers. At each border of
a round it drafts as the fast engine does, from true hidden rows, and notes how many of the following draws
equal the drafts.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ninfer.engine.settings import DraftSettings
from ninfer.engine.tally import Tally
from ninfer.engine.turn import Turn
from ninfer.reference.mtp import MtpHead
from ninfer.sampling.draw import select_token
from ninfer.sampling.parameters import SamplingParameters


class Drafting:
    """One request's drafts. Pairs go into the head's cache as soon as both of their halves are known."""

    def __init__(
        self, head: MtpHead, settings: DraftSettings, sampling: SamplingParameters, vocabulary: int
    ) -> None:
        self._head, self._most, self._sampling, self._vocabulary = head, settings.tokens, sampling, vocabulary
        self._cache = head.new_cache()
        self._hidden: Tensor | None = None
        self._position = torch.zeros(3, dtype=torch.int64)
        self._drafts: list[int] = []
        self._accepted = -1  # no round yet
        self.tally = Tally(settings.backend, settings.tokens, settings.tokens)

    def took(self, tokens: Tensor, positions: Tensor, hidden: Tensor) -> None:
        """The text model took in these tokens: its rows [T, H] at positions [3, T]."""
        if self._hidden is not None:
            self._pair(tokens[:1], self._hidden[None], self._position[:, None])
        if len(tokens) > 1:
            self._pair(tokens[1:], hidden[:-1], positions[:, :-1])
        self._hidden, self._position = hidden[-1], positions[:, -1]

    def committed(self, token: int, place: int, turn: Turn) -> None:
        """A token was committed at ``place`` of prompt and output, not yet taken in."""
        if self._accepted >= 0:
            right = self._accepted < len(self._drafts) and self._drafts[self._accepted] == token
            if right and turn.reason is None:
                self._accepted += 1
                return
            self.tally.add(len(self._drafts), self._accepted, copied=False)
        self._accepted, self._drafts = 0, []
        count = min(self._most, turn.left - 1)
        if turn.reason is None and count > 0:
            assert self._hidden is not None
            self._drafts = self._draft(token, place, turn, count)

    def _pair(self, tokens: Tensor, hidden: Tensor, positions: Tensor) -> Tensor:
        return self._head.forward(tokens, hidden, positions, self._cache)

    def _draft(self, token: int, place: int, turn: Turn, count: int) -> list[int]:
        """Drafts as the target would draw them; the pair of ``token`` is dropped again and comes with it."""
        assert self._hidden is not None
        before, counts = self._cache.length, turn.counts.copy()
        row = self._pair(torch.tensor([token]), self._hidden[None], self._position[:, None])[0]

        def choose(logits: Tensor, index: int) -> int:
            scores = logits[: self._vocabulary].to(torch.float32).numpy()
            drawn = select_token(scores, self._sampling, counts, place + 1 + index)
            counts[drawn] += 1
            return drawn

        drafts = self._head.draft(row, self._position, count, self._cache, choose)
        self._cache.crop(before)
        assert counts.dtype == np.int32
        return drafts
