"""What of a verified row is committed: the target's own draws, as long as each draft was one.

Owns acceptance and how a round's text is published. Ends, forced ids and text are the turn's.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import msgspec

from ninfer.engine.events import Delta
from ninfer.engine.turn import Turn
from ninfer.fast.draft.ngram.index import Tokens
from ninfer.fast.program.program import check_drawn


class Settled(NamedTuple):
    """What a round did for one member: tokens committed and what may be published, or why it failed."""

    tokens: int
    deltas: list[Delta]
    error: Exception | None = None


def accept(turn: Turn, drafts: Tokens, drawn: Tokens, at: float) -> tuple[list[int], Settled]:
    """Commit the target's draws to the turn, as long as each draft was one; the tokens committed.

    ``drafts`` [n], ``drawn`` [n + 1]; ``at`` is the time. Where the turn says what must come, that is
    committed in place of the draw. The last token committed is the correction of a draft, the bonus after all
    of them, or the end.
    """
    tokens: list[int] = []
    deltas: list[Delta] = []
    try:
        tokens, deltas = turn.commit_text(_agreed(drafts, drawn), at)
        while not tokens or _goes_on(turn, drafts, tokens):
            column = len(tokens)
            forced = turn.forced
            if column and forced is None and drawn[column] < 0:
                break  # no token: the next round meets it in its first column
            token = check_drawn(int(drawn[column])) if forced is None else forced
            deltas += turn.commit(token, at)
            tokens.append(token)
    except Exception as error:
        return tokens, Settled(len(tokens), _joined(deltas), error)
    return tokens, Settled(len(tokens), _joined(deltas))


def _agreed(drafts: Tokens, drawn: Tokens) -> list[int]:
    """The draws up to the first that is not its draft's, as far as they are tokens."""
    tokens: list[int] = drawn.tolist()
    for column, draft in enumerate(drafts.tolist()):
        if tokens[column] != draft:
            del tokens[column + 1 :]
            break
    return tokens if tokens[-1] >= 0 else tokens[:-1]


def _goes_on(turn: Turn, drafts: Tokens, tokens: list[int]) -> bool:
    """Whether the draw after ``tokens`` counts: the newest was drafted, and it is not the last."""
    count = len(tokens)
    return turn.reason is None and count <= len(drafts) and bool(drafts[count - 1] == tokens[-1])


def _joined(deltas: list[Delta]) -> list[Delta]:
    """Neighbours of one channel as one: a round publishes what it committed at once."""
    if len(deltas) < 2:
        return deltas
    joined: list[Delta] = []
    for channel, group in itertools.groupby(deltas, key=lambda delta: delta.channel):
        parts = list(group)
        last = parts[-1]
        if len(parts) > 1:
            text = "".join(part.text for part in parts)
            ids = tuple(token for part in parts for token in part.token_ids)
            last = msgspec.structs.replace(last, channel=channel, text=text, token_ids=ids)
        joined.append(last)
    return joined
