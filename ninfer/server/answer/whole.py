"""A whole answer put together from its pieces, for protocols whose object is made at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ninfer.server.answer.pieces import Call, Ended, Piece, Text


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """All text of both channels, the calls in order, and the end."""

    reasoning: str
    content: str
    calls: Sequence[Call]
    ended: Ended


def put_together(pieces: Iterable[Piece]) -> WholeAnswer:
    """The answer of these pieces, which end with ``Ended``."""
    texts: dict[str, list[str]] = {"reasoning": [], "content": []}
    calls: list[Call] = []
    ended: Ended | None = None
    for piece in pieces:
        if isinstance(piece, Text):
            texts[piece.channel].append(piece.text)
        elif isinstance(piece, Call):
            calls.append(piece)
        elif isinstance(piece, Ended):
            ended = piece
    assert ended is not None, "an answer without its end"
    return WholeAnswer("".join(texts["reasoning"]), "".join(texts["content"]), calls, ended)
