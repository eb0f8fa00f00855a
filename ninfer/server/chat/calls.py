"""Calls and results in chat history: ``tool_calls``, tool messages and the legacy function forms.

Owns this protocol's members; which calls and results belong together is decided in ``ninfer/server/tools``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ninfer import spec
from ninfer.prompt.conversation import ToolCall
from ninfer.server.members import Members, objects
from ninfer.server.tools import call_arguments, tool_name

_KINDS = ("function", "custom")


@dataclass(frozen=True, slots=True)
class CallsMade:
    """The calls of one assistant message; ``keys`` are (what results name, where it stands)."""

    calls: tuple[ToolCall, ...] = ()
    keys: tuple[tuple[str, str], ...] = ()


def read_calls(assistant: Members) -> CallsMade:
    """``tool_calls`` or the legacy ``function_call``. Errors: ``RequestError`` naming the member."""
    listed, legacy = assistant.value("tool_calls"), assistant.child("function_call")
    if listed is not None and not isinstance(listed, list):
        raise assistant.wrong_type("tool_calls", "an array")
    if listed and legacy is not None:
        raise assistant.invalid("function_call", "cannot stand beside tool_calls")
    if legacy is not None:
        call = ToolCall(tool_name(legacy), call_arguments(legacy, "arguments"))
        return CallsMade((call,), ((call.name, legacy.at("name")),))
    found = list(_listed(objects(listed or [], assistant.at("tool_calls"))))
    return CallsMade(tuple(call for call, _ in found), tuple((call.id or "", at) for call, at in found))


def answered_call(message: Members, role: str) -> tuple[str, str]:
    """What a result says it answers, and the member that says it: an id, or a function's name."""
    member = "tool_call_id" if role == "tool" else "name"
    return message.required_string(member), member


def _listed(calls: Iterator[Members]) -> Iterator[tuple[ToolCall, str]]:
    for call in calls:
        call_id = call.required_string("id")
        kind = call.choice("type", _KINDS) or "function"
        made = call.child(kind)
        if made is None:
            raise call.missing(kind)
        name = tool_name(made)
        if kind == "custom":
            arguments = {spec.document("tools")["custom_tool_input"]: made.required_string("input")}
        else:
            arguments = call_arguments(made, "arguments")
        yield ToolCall(name, arguments, call_id), call.at("id")
