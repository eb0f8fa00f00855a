"""The output of one request: what is committed, what is published and why it ends.

Owns the draw's history (counts), the output session and the end of the answer. Knows nothing of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from ninfer.engine.events import Delta, FinishReason
from ninfer.engine.requests import GenerationRequest, ThinkingBudget
from ninfer.output import OutputSession
from ninfer.prompt.prepared import Channel
from ninfer.sampling.distribution import Logits
from ninfer.sampling.draw import select_token


class Turn:
    """Tokens are drawn, then committed; ``reason`` is None until the answer has ended.

    ``prompt_tokens`` is the prompt's length, ``room`` the most tokens that may be committed, ``vocabulary``
    the number of ids that may be drawn. ``counts`` [vocabulary] says how often each id was committed, by a
    draw or ``forced``. ``began``, ``first`` and ``last`` are the times of admission, of the first and of the
    newest token, in seconds of the engine's clock.
    """

    def __init__(
        self,
        request: GenerationRequest,
        token_bytes: Callable[[int], bytes],
        prompt_tokens: int,
        room: int,
        vocabulary: int,
    ) -> None:
        self._request = request
        self._session = OutputSession(token_bytes, request.initial_channel, request.stops)
        self._prompt_tokens = prompt_tokens
        self._room = room
        self._vocabulary = vocabulary
        self._stop_ids = frozenset(() if request.ignore_stop_tokens else request.stop_token_ids)
        self.counts = np.zeros(vocabulary, dtype=np.int32)
        self._channel: Channel = request.initial_channel
        self._unpublished: list[int] = []
        self.committed = 0
        self.stop_string: str | None = None
        self.stop_token: int | None = None
        self.reason: FinishReason | None = "length" if room <= 0 else None
        self.began = self.first = self.last = 0.0
        self._inserted = 0  # ids of the budget's closing that are committed
        self._drawn_before = 0  # ids that were committed before the first of them

    @property
    def reasoning_tokens(self) -> int:
        return self._session.reasoning_tokens

    @property
    def control_tokens(self) -> int:
        """Committed ids that were inserted, not drawn."""
        return self._inserted

    @property
    def model_thinking_tokens(self) -> int:
        """Committed ids of the thinking that the model drew itself."""
        return self._drawn_before if self._inserted else self.reasoning_tokens

    @property
    def in_thinking(self) -> bool:
        """Whether the answer is inside its thinking; after ``close``, whether it ended there."""
        return self._session.channel == "reasoning"

    @property
    def forced(self) -> int | None:
        """The id that must be committed next, whatever is drawn: the close of thinking at its budget."""
        budget = self._request.thinking_budget
        if budget is None or self._inserted == len(budget.closing):
            return None
        if self._inserted or self._must_close(budget):
            return budget.closing[self._inserted]
        return None

    def begin(self, at: float) -> None:
        """The request is admitted at ``at``."""
        self.began = self.first = self.last = at

    @property
    def left(self) -> int:
        """The most tokens that may still be committed."""
        return self._room - self.committed

    def draw(self, logits: Logits) -> int:
        """The next token; logits [V] float32. Errors: as ``select_token``."""
        place = self._prompt_tokens + self.committed
        return select_token(logits[: self._vocabulary], self._request.sampling, self.counts, place)

    def commit(self, token: int, at: float = 0.0) -> Iterator[Delta]:
        """Take ``token`` into the answer, find out whether it ends there, and publish what became whole.

        ``at`` is when it was committed. Where ``forced`` says an id, ``token`` is that one.
        """
        forced = self.forced
        self.committed += 1
        self.counts[token] += 1
        self.last = at
        if self.committed == 1:
            self.first = at
        if forced is not None:
            return self._insert(token, forced)
        if token in self._stop_ids:
            self.stop_token, self.reason = token, "stop"
            return iter(())
        self._unpublished.append(token)
        step = self._session.push([token])
        if step.stop_string is not None:
            self.stop_string, self.reason = step.stop_string, "stop"
        elif self.committed == self._room:
            self.reason = "length"
        return self._publish(step.deltas)

    def commit_text(self, tokens: Sequence[int], at: float) -> tuple[list[int], list[Delta]]:
        """Take in those of ``tokens`` from the first on that are nothing but text of the answer.

        They are committed as by ``commit`` one by one, and what they publish is one delta. None of them is
        where ``commit`` has more to see to: thinking, a stop id, what may begin a stop string, a forced id.
        """
        if self.reason is not None or self.forced is not None:
            return [], []
        count = min(len(tokens), self.left)
        if not self._stop_ids.isdisjoint(tokens):
            count = min(count, next(place for place, token in enumerate(tokens) if token in self._stop_ids))
        run = list(tokens[:count])
        found = self._session.push_text(run)
        if not run or found is None:
            return [], []
        if self.committed == 0:
            self.first = at
        self.last = at
        counts = self.counts
        for token in run:  # after a pass over the weights ``np.add.at`` takes ten times as long
            counts[token] += 1
        # The delta tells of the ids up to the last one with text; those after it wait for theirs.
        text, told = found
        self.committed += told
        self._unpublished += run[:told]
        deltas = list(self._publish([("content", text)])) if told else []
        self.committed += count - told
        self._unpublished += run[told:]
        if self.committed == self._room:
            self.reason = "length"
        return run, deltas

    def _insert(self, token: int, forced: int) -> Iterator[Delta]:
        """A forced id: it never ends an answer, and there is room for one more after the last of them."""
        assert token == forced, "another id was committed than the one that must follow"
        if self._inserted == 0:
            self._drawn_before = self.committed - 1
        self._inserted += 1
        self._unpublished.append(token)
        return self._publish(self._session.insert([token]).deltas)

    def _must_close(self, budget: ThinkingBudget) -> bool:
        """Whether thinking is open at its budget, and its close and one token more fit.

        A close that the model has just written goes first: what follows will decide about it.
        """
        return (
            self.committed >= budget.tokens
            and self.in_thinking
            and not self._session.closing
            and self.committed + len(budget.closing) < self._room
        )

    def cancel(self) -> None:
        """End the answer where it is."""
        self.reason = "cancelled"

    def close(self) -> Iterator[Delta]:
        """What the session held back, and ids whose text never came."""
        if self.stop_string is None:
            yield from self._publish(self._session.finish())
        if self._unpublished:
            yield from self._publish([(self._channel, "")])

    def _publish(self, deltas: Iterable[tuple[Channel, str]]) -> Iterator[Delta]:
        for channel, text in deltas:
            self._channel = channel
            ids, self._unpublished = tuple(self._unpublished), []
            yield Delta(
                self._request.id,
                channel,
                text,
                ids,
                self.committed,
                self.first - self.began,
                self.last - self.first,
            )
