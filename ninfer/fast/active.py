"""One request in flight, and how it comes to be: its checked prompt, its output, its sampler, its lineage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ninfer.engine.account import RequestAccount
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.turn import Turn
from ninfer.errors import EngineError, RequestError
from ninfer.fast.draft.speculation import RequestDraft
from ninfer.fast.memory.lanes import Lane, pages_for
from ninfer.fast.prefix.content import Content, axes_key
from ninfer.fast.prefix.lineage import Lineage
from ninfer.fast.program.program import ProgramOptions, Sampler, Tokens
from ninfer.fast.schedule.scheduler import Ticket

TokenBytes = Callable[[int], bytes]


@dataclass(slots=True, eq=False)
class Active:
    """``token`` is committed but not yet taken in by the model; ``axes`` [3, T] are the prompt's.

    ``account`` and ``began`` come with the first binding. A paused request has no lane; ``replay_to`` is how
    many tokens it had taken in. ``pauses`` counts them, ``paused_at`` is when the last one began. ``revoked``
    counts snapshots of others that were given up for its pages.
    """

    request: GenerationRequest
    axes: Tokens
    turn: Turn
    sampler: Sampler
    lineage: Lineage
    room: int
    ticket: Ticket
    submitted_at: float
    lane: Lane | None = None
    account: RequestAccount | None = None
    token: int = -1
    cached: int = 0
    began: float = 0.0
    first: float = 0.0
    last: float = 0.0
    replay_to: int = 0
    pauses: int = 0
    paused_at: float = 0.0
    revoked: int = 0
    draft: RequestDraft | None = None

    @property
    def bound(self) -> Lane:
        """Its lane, while it has one."""
        assert self.lane is not None
        return self.lane

    def took(self, tokens: Sequence[int]) -> None:
        """These were committed; the last one is not yet taken in."""
        self.token = tokens[-1]
        if len(tokens) == 1:  # an ordinary round: by far the most frequent
            self.lineage.content.append(tokens[0])
        else:
            self.lineage.content.extend(tokens)

    @property
    def text(self) -> Content:
        """Its prompt and what was committed."""
        return self.lineage.content

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        return self.lineage.prompt

    @property
    def prefilled(self) -> bool:
        """Whether the whole prompt has been taken in, now or before a pause."""
        taken = self.replay_to if self.lane is None else max(self.lane.frontier, self.replay_to)
        return taken >= self.prompt

    @property
    def rest(self) -> int:
        """Tokens that its lane has yet to take in before it decodes."""
        return max(self.prompt, self.replay_to) - self.bound.frontier

    def tokens(self, begin: int, end: int) -> tuple[Tokens, Tokens]:
        """Ids of the places ``begin..end`` and their axes [3, n]; behind the prompt they count on as text."""
        inside = self.axes[:, begin : min(end, self.prompt)]
        after = np.arange(max(begin, self.prompt), end, dtype=np.int32) + self._shift
        axes = np.concatenate([inside, np.tile(after, (3, 1))], 1) if len(after) else inside
        return self.lineage.content.tokens(begin, end), axes

    @property
    def _shift(self) -> int:
        """Rotary position of the first answer token minus its place."""
        return int(self.axes.max()) + 1 - self.prompt


def prepare(
    request: GenerationRequest,
    submitted_at: float,
    options: ProgramOptions,
    vocabulary_rows: int,
    token_bytes: TokenBytes,
) -> Active:
    """The request, checked. ``vocabulary_rows`` is the model's.

    Errors: ``RequestError`` for a prompt that is empty, too long or has ids outside the model;
    ``EngineError`` for one that no memory of this server could hold.
    """
    tokens = np.frombuffer(request.tokens, "<i4")
    axes = np.frombuffer(request.positions, "<i4").reshape(3, -1)
    if not axes.size:
        axes = np.tile(np.arange(len(tokens), dtype=np.int32), (3, 1))
    check_prompt(tokens, axes, options.max_context, vocabulary_rows)
    room = min(request.max_tokens, options.max_context - len(tokens))
    pages = pages_for(len(tokens) + max(room, 0))
    if pages > options.pages:
        raise EngineError(
            "insufficient_memory",
            f"the request may need {pages} KV pages of 64 tokens, this server has {options.pages}; "
            "ask for fewer tokens or start with a larger --kv-capacity",
        )
    turn = Turn(request, token_bytes, len(tokens), room, options.vocabulary)
    return Active(
        request,
        axes,
        turn,
        Sampler(request.sampling, turn.counts),
        Lineage(Content(tokens, axes_key=axes_key(axes)), len(tokens), request.cache),
        room,
        Ticket(request.id),
        submitted_at,
    )


def check_prompt(tokens: Tokens, axes: Tokens, max_context: int, rows: int) -> None:
    """Refuse a prompt the model cannot take. Errors: ``RequestError``."""
    count = len(tokens)
    if count == 0:
        raise RequestError("invalid_prompt", "the prompt has no tokens")
    if count > max_context:
        raise RequestError(
            "context_length_exceeded",
            f"the prompt has {count} tokens, more than the context of {max_context}",
        )
    if tokens.min() < 0 or tokens.max() >= rows:
        raise RequestError("invalid_prompt", f"a prompt token is outside 0..{rows - 1}")
    if axes.shape[1] != count:
        raise RequestError("invalid_prompt", f"{axes.shape[1]} positions for {count} tokens")
