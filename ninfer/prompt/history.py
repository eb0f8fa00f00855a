"""Earlier prompts, so that a follow-up turn begins where its conversation left off.

Owns the store of rendered conversations and the search for the longest shared beginning. What may be taken
over from one is ``replay.py``'s judgement.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, count
from typing import Any

from ninfer.prompt.collector import Mark
from ninfer.prompt.conversation import Message, TextPart, ToolCall
from ninfer.prompt.exact import same
from ninfer.prompt.prepared import Text
from ninfer.prompt.replay import LoopRecord
from ninfer.prompt.tokenizer import TokenArray

MessageKey = tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RenderedConversation:
    """A prompt with what its message loop left.

    ``keys`` tell its messages from others, ``offsets[i]`` tokens precede boundary i's last text.
    """

    variables: Mapping[str, Any]
    keys: Sequence[MessageKey]
    made_messages: list[Any]
    record: LoopRecord
    offsets: Sequence[int]
    tokens: TokenArray
    text: Text

    def text_before(self, mark: Mark) -> Text:
        """The prompt's text up to a boundary; nothing is copied."""
        before: list[tuple[str, int]] = []
        left = mark.characters
        for chunk, used in self.text:
            if used >= left:
                return (*before, (chunk, left))
            before.append((chunk, used))
            left -= used
        raise AssertionError("a boundary lies behind its prompt's text")

    @property
    def held_bytes(self) -> int:
        """What the entry takes beside its messages' own text, estimated."""
        return 4 * sum(len(chunk) for chunk, _ in self.text) + self.tokens.nbytes + 512 * len(self.keys)


class History:
    """The last ``capacity`` conversations within ``capacity_bytes``, the newest first; thread-safe."""

    def __init__(self, capacity: int, capacity_bytes: int) -> None:
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._entries: tuple[RenderedConversation, ...] = ()
        self._lock = threading.Lock()

    def find(
        self, variables: Mapping[str, Any], keys: Sequence[MessageKey]
    ) -> tuple[RenderedConversation | None, int]:
        """The entry with the same variables that shares most messages from the start, and how many."""
        best, longest = None, 0
        for entry in self._entries:
            if longest == len(keys) or not same(entry.variables, variables):
                continue
            shared = shared_beginning(entry.keys, keys)
            if shared > longest:
                best, longest = entry, shared
        return best, longest

    def add(self, entry: RenderedConversation, replaced: RenderedConversation | None) -> None:
        """Keep ``entry``; ``replaced``, where it is a beginning of ``entry``, goes."""
        if replaced is not None and len(replaced.keys) > len(entry.keys):
            replaced = None
        with self._lock:
            kept = [entry, *(other for other in self._entries if other is not replaced)][: self._capacity]
            while len(kept) > 1 and sum(other.held_bytes for other in kept) > self._capacity_bytes:
                kept.pop()
            self._entries = tuple(kept)


def message_keys(messages: Sequence[Message]) -> list[MessageKey]:
    """What a template can see of each message, in a form that compares without Python code.

    A follow-up turn compares every message of a long history: dataclasses would build two tuples for each.
    """
    return [
        (
            parts[0].text if len(parts := message.parts) == 1 and type(parts[0]) is TextPart else parts,
            message.role,
            message.reasoning,
            message.tool_call_id,
            _ExactCalls(message.tool_calls) if message.tool_calls else None,
        )
        for message in messages
    ]


def shared_beginning(left: Sequence[MessageKey], right: Sequence[MessageKey]) -> int:
    """How many keys from the start are equal."""
    shorter = min(len(left), len(right))
    return next(compress(count(), map(operator.ne, left, right)), shorter)


class _ExactCalls:
    """Tool calls that equal others only where every template would render the same."""

    __slots__ = ("_calls",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, calls: tuple[ToolCall, ...]) -> None:
        self._calls = calls

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ExactCalls) and (
            self._calls is other._calls
            or (len(self._calls) == len(other._calls) and all(map(_same_call, self._calls, other._calls)))
        )


def _same_call(one: ToolCall, other: ToolCall) -> bool:
    return one.name == other.name and one.id == other.id and same(one.arguments, other.arguments)
