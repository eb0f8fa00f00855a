"""Messages in order as the turns of a conversation.

Owns what the protocol says about order: neighbours of one role are one turn, results come first in theirs,
and a last assistant turn is continued. How calls and results pair stands in ``ninfer/server/tools``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ninfer import spec
from ninfer.errors import RequestError
from ninfer.prompt.conversation import Message, TextPart
from ninfer.server.members import Members
from ninfer.server.messages.blocks import Block, Reasoning, Result, Use, read_content
from ninfer.server.messages.cache_control import CacheMarkers
from ninfer.server.tools import HistoryEntry, paired

_TOOL_HISTORY = "invalid_tool_history"


@dataclass(slots=True)
class _Turn:
    """Neighbouring messages of one role; ``where`` is the first of them."""

    role: str
    where: Members
    blocks: list[tuple[Block, Members]] = field(default_factory=list)


def read_history(body: Members, markers: CacheMarkers) -> tuple[Message, ...]:
    """The member ``messages``. Errors: ``RequestError`` naming the message or block that is wrong."""
    entries = body.required_objects("messages")
    if not entries:
        raise body.invalid("messages", "must hold at least one message")
    history = [entry for turn in _turns(entries, markers) for entry in _entries(turn)]
    for _, path in history[-1].calls[:1]:
        raise RequestError(_TOOL_HISTORY, f"{path} has no tool_result in a user message after it.", path)
    return paired(history)


def _turns(entries: Sequence[Members], markers: CacheMarkers) -> list[_Turn]:
    roles: list[str] = spec.document("http/messages")["roles"]
    turns: list[_Turn] = []
    for entry in entries:
        entry.required_string("role")
        role = entry.choice("role", roles)
        assert role is not None
        # System messages stand for themselves, wherever they are.
        if role == "system" or not turns or turns[-1].role != role:
            turns.append(_Turn(role, entry))
        turns[-1].blocks += read_content(entry, role, markers)
    return turns


def _entries(turn: _Turn) -> Iterator[HistoryEntry]:
    if turn.role == "assistant":
        yield _assistant(turn)
    elif turn.role == "user":
        yield from _user(turn)
    else:
        yield HistoryEntry(Message("system", tuple(_texts(turn.blocks))), turn.where)


def _assistant(turn: _Turn) -> HistoryEntry:
    """One assistant turn: reasoning, then text, then calls."""
    reasoning: list[str] = []
    parts: list[TextPart] = []
    uses: list[Use] = []
    for block, where in turn.blocks:
        if isinstance(block, Reasoning):
            if parts or uses:
                raise _order(where, "thinking must come before text and tool_use")
            reasoning.append(block.text)
        elif isinstance(block, TextPart):
            if not uses:
                parts.append(block)
            elif block.text.strip():
                raise _order(where, "text must come before tool_use")
        elif isinstance(block, Use):
            uses.append(block)
    message = Message(
        "assistant",
        tuple(parts),
        reasoning="".join(reasoning) or None,
        tool_calls=tuple(use.call for use in uses),
    )
    calls = tuple((use.call.id or "", use.block.at("id")) for use in uses)
    return HistoryEntry(message, turn.where, calls)


def _user(turn: _Turn) -> Iterator[HistoryEntry]:
    """The results of calls before, then what the user says."""
    rest: list[tuple[Block, Members]] = []
    results = 0
    for block, where in turn.blocks:
        if not isinstance(block, Result):
            rest.append((block, where))
            continue
        if rest:
            raise where.invalid("type", "tool_result must come before other blocks", _TOOL_HISTORY)
        results += 1
        message = Message("tool", block.parts, tool_call_id=block.id)
        yield HistoryEntry(message, where, answers=block.id, answers_at="tool_use_id")
    if rest or not results:
        yield HistoryEntry(Message("user", tuple(_texts(rest))), turn.where)


def _texts(blocks: Sequence[tuple[Block, Members]]) -> Iterator[TextPart]:
    return (block for block, _ in blocks if isinstance(block, TextPart))


def _order(where: Members, problem: str) -> RequestError:
    return RequestError("invalid_assistant_history", f"{where.path}: {problem}.", where.path)
