"""Tool declarations and choice of a chat body.

Owns this protocol's members; what a name may be and what a choice permits stands in ``ninfer/server/tools``.
"""

from __future__ import annotations

from typing import cast

from ninfer.server.members import Members, objects
from ninfer.server.tools import (
    ChoiceKind,
    Declarations,
    Names,
    ToolChoice,
    ToolFields,
    custom_definition,
    permitted,
    tool_name,
)

_CHOICES = ("auto", "none", "required")
_KINDS = ("function", "custom")
_UNSUPPORTED = "unsupported_value"


def read_tools(body: Members) -> ToolFields:
    """``tools``, ``tool_choice``, ``parallel_tool_calls`` and ``tool_constraints``.

    Errors: ``RequestError`` naming the field.
    """
    declarations = Declarations()
    tools = body.value("tools")
    if tools is not None and not isinstance(tools, list):
        raise body.wrong_type("tools", "an array")
    for tool in objects(tools or [], body.at("tools")):
        _declare(declarations, tool)
    return permitted(declarations, _choice(body))


def _declare(declarations: Declarations, tool: Members) -> None:
    kind = tool.required_string("type")
    if kind not in _KINDS:
        raise tool.invalid(
            "type",
            f"{kind[:40]!a} is not supported: NInfer provides function and custom tools",
            _UNSUPPORTED,
        )
    named = _required_child(tool, kind)
    description = named.string("description")
    if kind == "custom":
        _check_format(named)
        declarations.add(named, custom_definition(tool_name(named), description))
        return
    named.child("parameters")
    strict = named.boolean("strict") or False
    # As received, in order: a client that sends the same tools again gets the same prompt.
    shown = {member: value for member, value in tool.values.items() if member in ("type", kind)}
    declarations.add(named, shown, strict=strict)


def _check_format(custom: Members) -> None:
    form = custom.child("format")
    if form is None:
        return
    form.required_string("type")
    if form.choice("type", ("text", "grammar")) == "grammar":
        raise form.invalid(
            "type", "grammar is not supported: NInfer does not provide constrained tools yet", _UNSUPPORTED
        )


def _choice(body: Members) -> ToolChoice:
    single = body.boolean("parallel_tool_calls") is False
    basic = body.choice("tool_constraints", ("basic", "auto")) == "basic"
    kind, names = _chosen(body)
    return ToolChoice(
        kind,
        body.at("tool_choice"),
        names,
        single_at=body.at("parallel_tool_calls") if single else None,
        constraints_at=body.at("tool_constraints") if basic else None,
    )


def _chosen(body: Members) -> tuple[ChoiceKind, Names]:
    value = body.value("tool_choice")
    if value is None:
        return "auto", ()
    if isinstance(value, str):
        return cast(ChoiceKind, body.choice("tool_choice", _CHOICES)), ()
    if not isinstance(value, dict):
        raise body.wrong_type("tool_choice", "a string or an object")
    chosen = Members(value, body.at("tool_choice"))
    kind = chosen.required_string("type")
    chosen.choice("type", (*_KINDS, "allowed_tools"))
    if kind == "allowed_tools":
        return "allowed", _allowed(_required_child(chosen, kind))
    return "named", (_named(chosen, kind),)


def _allowed(allowed: Members) -> Names:
    allowed.required_string("mode")
    allowed.choice("mode", ("auto", "required"))
    names = []
    for tool in allowed.required_objects("tools"):
        tool.required_string("type")
        kind = tool.choice("type", _KINDS)
        assert kind is not None
        names.append(_named(tool, kind))
    return tuple(names)


def _named(chosen: Members, kind: str) -> tuple[str, str]:
    """The path and the name of a chosen tool."""
    named = _required_child(chosen, kind)
    return named.at("name"), named.required_string("name")


def _required_child(members: Members, name: str) -> Members:
    child = members.child(name)
    if child is None:
        raise members.missing(name)
    return child
