"""Items as the turns of a conversation.

Owns the grouping of assistant Items and the refusal of an order that no turn has; which results belong to
which calls is decided in ``ninfer/server/tools``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ninfer.errors import RequestError
from ninfer.prompt.conversation import Message, TextPart, ToolCall
from ninfer.server.members import Members, shown
from ninfer.server.responses.items import Item
from ninfer.server.responses.namespaces import identity
from ninfer.server.tools import HistoryEntry, call_arguments, paired

# The order within one assistant turn; each kind may repeat, none may come back.
_ORDER = ("reasoning", "message", "function_call")
_TOOL_HISTORY = "invalid_tool_history"


def turns(items: Iterable[Item]) -> tuple[Message, ...]:
    """The messages of a history. Errors: ``RequestError`` naming the Item that does not fit."""
    messages = paired(_entries(items))
    if messages and messages[-1].tool_calls:
        raise RequestError(
            _TOOL_HISTORY,
            f"input: the call {shown(messages[-1].tool_calls[0].id or '')} has no result; every call of a "
            "turn needs one before the conversation goes on.",
            "input",
        )
    return messages


def holds_user_message(items: Iterable[Item]) -> bool:
    """Whether somebody has asked something yet."""
    return any(item.wire["type"] == "message" and item.wire["role"] == "user" for item in items)


@dataclass(slots=True)
class _AssistantTurn:
    """Assistant Items that stand together."""

    where: Members
    stage: int = 0
    reasoning: list[str] = field(default_factory=list)
    parts: list[TextPart] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)  # of the calls
    reasoned: bool = False

    def add(self, item: Item) -> None:
        kind = item.wire["type"]
        stage = _ORDER.index(kind)
        if stage < self.stage:
            raise RequestError(
                "invalid_assistant_history",
                f"{item.path} is {kind} after {_ORDER[self.stage]}, but one assistant turn holds "
                "reasoning, then messages, then function calls.",
                item.path,
            )
        self.stage = stage
        if kind == "reasoning":
            self.reasoned = True
            self.reasoning += [part["text"] for part in item.wire["content"]]
        elif kind == "message":
            self.parts += _texts(item.wire["content"])
        else:
            self.calls.append(_call(item))
            self.items.append(item)

    def entry(self) -> HistoryEntry:
        message = Message(
            "assistant",
            tuple(self.parts),
            reasoning="".join(self.reasoning) if self.reasoned else None,
            tool_calls=tuple(self.calls),
        )
        keys = tuple((item.wire["call_id"], item.at("call_id")) for item in self.items)
        return HistoryEntry(message, self.where, calls=keys)


def _entries(items: Iterable[Item]) -> Iterator[HistoryEntry]:
    turn: _AssistantTurn | None = None
    calls: list[Item] = []  # of the last assistant turn: those that a result may be for
    for item in items:
        kind = item.wire["type"]
        if kind != "function_call_output" and (kind != "message" or item.wire["role"] == "assistant"):
            if turn is None:
                turn = _AssistantTurn(Members(item.wire, item.path))
            turn.add(item)
            continue
        if turn is not None:
            yield turn.entry()
            calls, turn = turn.items, None
        yield _result(item, calls) if kind == "function_call_output" else _message(item)
    if turn is not None:
        yield turn.entry()


def _message(item: Item) -> HistoryEntry:
    message = Message(item.wire["role"], tuple(_texts(item.wire["content"])))
    return HistoryEntry(message, Members(item.wire, item.path))


def _result(item: Item, calls: Sequence[Item]) -> HistoryEntry:
    where, call_id = Members(item.wire, item.path), item.wire["call_id"]
    call = next((call for call in calls if call.wire["call_id"] == call_id), None)
    if call is None:
        raise where.invalid("call_id", f"{shown(call_id)} names no call of the turn before", _TOOL_HISTORY)
    for name in ("name", "namespace"):
        if name in item.wire and item.wire[name] != call.wire.get(name):
            problem = f"{shown(item.wire[name])} is not that of its call, {shown(str(call.wire.get(name)))}"
            raise where.invalid(name, problem, _TOOL_HISTORY)
    message = Message("tool", tuple(_texts(item.wire["output"])), tool_call_id=call_id)
    return HistoryEntry(message, where, answers=call_id, answers_at="call_id")


def _call(item: Item) -> ToolCall:
    name = identity(item.wire.get("namespace"), item.wire["name"])
    return ToolCall(name, call_arguments(Members(item.wire, item.path), "arguments"), item.wire["call_id"])


def _texts(content: str | Sequence[Mapping[str, Any]]) -> list[TextPart]:
    if isinstance(content, str):
        return [TextPart(content)]
    return [
        TextPart(
            part["refusal"] if part["type"] == "refusal" else part["text"], "prompt_cache_breakpoint" in part
        )
        for part in content
    ]
