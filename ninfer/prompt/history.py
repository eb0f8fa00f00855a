"""Earlier prompts, so that a follow-up turn begins where its conversation left off.

Owns the store of rendered conversations and the search for the longest shared beginning. What may be taken
over from one is ``replay.py``'s judgement.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer.prompt.collector import Mark
from ninfer.prompt.conversation import Message, TextPart, ToolCall
from ninfer.prompt.exact import same
from ninfer.prompt.prepared import Text
from ninfer.prompt.replay import LoopRecord
from ninfer.prompt.tokenizer import TokenArray


@dataclass(frozen=True, slots=True, eq=False)
class RenderedConversation:
    """A prompt with what its message loop left; ``offsets[i]`` tokens precede boundary i's last text."""

    variables: Mapping[str, Any]
    messages: Sequence[Message]
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
        return 4 * sum(len(chunk) for chunk, _ in self.text) + self.tokens.nbytes + 512 * len(self.messages)


class History:
    """The last ``capacity`` conversations within ``capacity_bytes``, the newest first; thread-safe."""

    def __init__(self, capacity: int, capacity_bytes: int) -> None:
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._entries: tuple[RenderedConversation, ...] = ()
        self._lock = threading.Lock()

    def find(
        self, variables: Mapping[str, Any], messages: Sequence[Message]
    ) -> tuple[RenderedConversation | None, int]:
        """The entry with the same variables that shares most messages from the start, and how many."""
        best, longest = None, 0
        for entry in self._entries:
            if longest == len(messages) or not same(entry.variables, variables):
                continue
            shared = shared_messages(entry.messages, messages)
            if shared > longest:
                best, longest = entry, shared
        return best, longest

    def add(self, entry: RenderedConversation, replaced: RenderedConversation | None) -> None:
        """Keep ``entry``; ``replaced``, where it is a beginning of ``entry``, goes."""
        if replaced is not None and len(replaced.messages) > len(entry.messages):
            replaced = None
        with self._lock:
            kept = [entry, *(other for other in self._entries if other is not replaced)][: self._capacity]
            while len(kept) > 1 and sum(other.held_bytes for other in kept) > self._capacity_bytes:
                kept.pop()
            self._entries = tuple(kept)


def shared_messages(left: Sequence[Message], right: Sequence[Message]) -> int:
    """How many messages from the start are the same to any template."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one is not other:
            mine, theirs = one.parts, other.parts
            # Texts are compared here, without the tuples that dataclasses build: this loop meets every
            # message of a long history on every turn.
            if len(mine) == 1 == len(theirs) and type(mine[0]) is TextPart is type(theirs[0]):
                if mine[0].text != theirs[0].text:
                    break
            elif mine != theirs:
                break
            if (
                one.role != other.role
                or one.reasoning != other.reasoning
                or one.tool_call_id != other.tool_call_id
                or not (one.tool_calls is other.tool_calls or _same_calls(one.tool_calls, other.tool_calls))
            ):
                break
        count += 1
    return count


def _same_calls(one: tuple[ToolCall, ...], other: tuple[ToolCall, ...]) -> bool:
    return len(one) == len(other) and all(map(_same_call, one, other))


def _same_call(one: ToolCall, other: ToolCall) -> bool:
    return one.name == other.name and one.id == other.id and same(one.arguments, other.arguments)
