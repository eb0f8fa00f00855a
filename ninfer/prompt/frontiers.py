"""Where a prompt may be cut so that others can share what comes before: places in tokens from its start.

Owns the mapping from messages and their parts to tokens. Places are advice: one that no token boundary
represents is left out, and no place changes a token.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ninfer import spec
from ninfer.prompt.conversation import Conversation, Message, TextPart
from ninfer.prompt.tokenizer import TokenArray, Tokenizer

_LEADING = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Frontiers:
    """``explicit`` and ``automatic`` are the client's, the others the conversation's own.

    ``opener`` is where the assistant's turn begins, ``leading`` where the leading instructions have ended,
    ``messages`` where each turn begins.
    """

    explicit: tuple[int, ...] = ()
    automatic: int | None = None
    opener: int | None = None
    leading: int | None = None
    messages: tuple[int, ...] = ()


class FrontierFinder:
    """Finds the frontiers of prompts of one tokenizer, whose turns begin and end with control tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._control = frozenset(tokenizer.control_tokens.values())
        self._begin = tokenizer.control_tokens.get("<|im_start|>", -1)
        self._writes: int = spec.document("cache")["hints"]["writes"]

    def find(self, conversation: Conversation, tokens: TokenArray, offsets: Sequence[int]) -> Frontiers:
        """The frontiers of ``tokens`` [T].

        ``offsets[i]`` tokens lie before message i; empty where that is not known.
        """
        begins: list[int] = np.flatnonzero(tokens == self._begin).tolist()
        messages = conversation.messages
        marked = list(_marked(messages))[-self._writes :]
        explicit = [self._part_end(messages, place, tokens, offsets) for place in marked]
        automatic = None
        if conversation.cache_automatic and len(marked) < self._writes:
            automatic = self._body_end(messages, tokens, offsets)
        first = messages[0].role in _LEADING or conversation.tools
        return Frontiers(
            explicit=tuple(sorted({place for place in explicit if place})),
            automatic=automatic,
            opener=begins[-1] if begins else None,
            leading=begins[1] if first and len(begins) > 1 else None,
            messages=tuple(begins[1:]),
        )

    def _body_end(
        self, messages: Sequence[Message], tokens: TokenArray, offsets: Sequence[int]
    ) -> int | None:
        """The end of the latest content part that is not the assistant's, before what closes its message."""
        last = len(messages) - 1
        if messages[last].role == "assistant" or not messages[last].parts:
            return None
        return self._part_end(messages, (last, len(messages[last].parts) - 1), tokens, offsets)

    def _part_end(
        self,
        messages: Sequence[Message],
        place: tuple[int, int],
        tokens: TokenArray,
        offsets: Sequence[int],
    ) -> int | None:
        """Tokens up to the end of part ``place[1]`` of message ``place[0]``; None between two boundaries.

        A template may trim a message's text, but writes it in one piece: its last occurrence is the one.
        """
        index, part = place
        texts = [one.text for one in messages[index].parts if isinstance(one, TextPart)]
        whole = "".join(texts)
        text = whole.strip()
        cut = len("".join(texts[: part + 1])) - (len(whole) - len(whole.lstrip()))
        if not text or cut <= 0:
            return None
        begin, end = _region(index, offsets, len(tokens))
        pieces = [self._bytes(int(token)) for token in tokens[begin:end]]
        found = b"".join(pieces).rfind(text.encode())
        if found < 0:
            return None
        wanted = found + len(text[:cut].encode())
        ends = np.cumsum([len(piece) for piece in pieces])
        at = int(np.searchsorted(ends, wanted))
        return begin + at + 1 if at < len(ends) and ends[at] == wanted else None

    def _bytes(self, token: int) -> bytes:
        """What a token spells; a control token spells what no text contains."""
        return b"\0" if token in self._control else self._tokenizer.token_bytes(token)


def _marked(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    parts = chain.from_iterable(map(operator.attrgetter("parts"), messages))
    if not any(map(operator.attrgetter("breakpoint"), parts)):  # a long history costs no Python code here
        return
    for index, message in enumerate(messages):
        for place, part in enumerate(message.parts):
            if isinstance(part, TextPart) and part.breakpoint:
                yield index, place


def _region(index: int, offsets: Sequence[int], length: int) -> tuple[int, int]:
    """Tokens among which the message's text lies, and little of the next one's.

    An offset stands at the last control token that was settled before its message: what follows it may still
    be of the message before.
    """
    if index >= len(offsets):
        return 0, length
    return offsets[index], min(length, offsets[index + 2] + 1) if index + 2 < len(offsets) else length
