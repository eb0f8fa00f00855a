"""Items as the turns of a conversation.

Owns the grouping of assistant Items, the matching of results to calls and the refusal of what no template
could represent. Nothing is moved but results, which are put in the order of their calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ninfer.errors import RequestError
from ninfer.prompt.conversation import Message, TextPart, ToolCall
from ninfer.server.json_body import NotAnObject, read_object
from ninfer.server.members import shown
from ninfer.server.responses.items import Item
from ninfer.server.responses.namespaces import identity

# The order within one assistant turn; each kind may repeat, none may come back.
_ORDER = ("reasoning", "message", "function_call")


def turns(items: Iterable[Item]) -> tuple[Message, ...]:
    """The messages of a history. Errors: ``RequestError`` naming the Item that does not fit."""
    history = _History()
    for item in items:
        history.add(item)
    return tuple(history.finish())


def holds_user_message(items: Iterable[Item]) -> bool:
    """Whether somebody has asked something yet."""
    return any(item.wire["type"] == "message" and item.wire["role"] == "user" for item in items)


def call_arguments(item: Item) -> dict[str, Any]:
    """The ``arguments`` of a call as an object in member order. Errors: ``RequestError``."""
    path = f"{item.path}.arguments"
    try:
        return read_object(item.wire["arguments"].encode())
    except NotAnObject as error:
        raise RequestError(
            "invalid_value", f"{path} must be the text of a JSON object: {error}.", path
        ) from error


@dataclass(slots=True)
class _AssistantTurn:
    """The assistant Items that stand together so far."""

    stage: int = 0
    reasoning: list[str] = field(default_factory=list)
    parts: list[TextPart] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
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
            self.parts += [TextPart(_text(part)) for part in item.wire["content"]]
        else:
            self.calls.append(
                ToolCall(
                    identity(item.wire.get("namespace"), item.wire["name"]),
                    call_arguments(item),
                    item.wire["call_id"],
                )
            )

    def message(self) -> Message:
        return Message(
            "assistant",
            tuple(self.parts),
            reasoning="".join(self.reasoning) if self.reasoned else None,
            tool_calls=tuple(self.calls),
        )


class _History:
    """Reads Items in order; at most one assistant turn and its results are open."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._turn: _AssistantTurn | None = None
        self._calls: list[Item] = []  # of the open turn, then waiting for their results
        self._results: dict[str, Message] = {}

    def add(self, item: Item) -> None:
        kind = item.wire["type"]
        if kind == "function_call_output":
            self._end_turn()
            self._add_result(item)
        elif kind != "message" or item.wire["role"] == "assistant":
            self._end_results(item)
            self._add_to_turn(item)
        else:
            self._end_turn()
            self._end_results(item)
            self._messages.append(Message(item.wire["role"], tuple(_texts(item.wire["content"]))))

    def finish(self) -> list[Message]:
        self._end_turn()
        self._end_results(None)
        return self._messages

    def _add_to_turn(self, item: Item) -> None:
        if self._turn is None:
            self._turn = _AssistantTurn()
        self._turn.add(item)
        if item.wire["type"] == "function_call":
            if any(call.wire["call_id"] == item.wire["call_id"] for call in self._calls):
                raise _invalid(item, "call_id", "stands on another call of the same turn")
            self._calls.append(item)

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.message())
            self._turn = None

    def _add_result(self, item: Item) -> None:
        call_id = item.wire["call_id"]
        call = next((call for call in self._calls if call.wire["call_id"] == call_id), None)
        if call is None:
            raise _invalid(item, "call_id", "names no call of the turn before it")
        if call_id in self._results:
            raise _invalid(item, "call_id", "has a result already")
        for name in ("name", "namespace"):
            if name in item.wire and item.wire[name] != call.wire.get(name):
                raise _invalid(item, name, f"is not that of its call, {shown(str(call.wire.get(name)))}")
        self._results[call_id] = Message("tool", tuple(_texts(item.wire["output"])), tool_call_id=call_id)

    def _end_results(self, following: Item | None) -> None:
        """Results of the last turn are complete, or there are none and the turn is still open."""
        if self._turn is not None or not self._calls:
            return
        for call in self._calls:
            if call.wire["call_id"] not in self._results:
                where = following.path if following is not None else "input"
                raise RequestError(
                    "invalid_tool_history",
                    f"{where}: the call {shown(call.wire['call_id'])} has no result; every call of a turn "
                    "needs one before the conversation goes on.",
                    where,
                )
        self._messages += [self._results[call.wire["call_id"]] for call in self._calls]
        self._calls, self._results = [], {}


def _texts(content: str | Sequence[Any]) -> Iterator[TextPart]:
    if isinstance(content, str):
        yield TextPart(content)
    else:
        for part in content:
            yield TextPart(_text(part))


def _text(part: Any) -> str:
    text: str = part["refusal"] if part["type"] == "refusal" else part["text"]
    return text


def _invalid(item: Item, name: str, problem: str) -> RequestError:
    path = f"{item.path}.{name}"
    return RequestError("invalid_tool_history", f"{path} {shown(item.wire[name])} {problem}.", path)
