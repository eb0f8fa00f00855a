"""Tool declarations and choice of a Responses body: functions, alone or in namespaces.

Owns this protocol's members and the way from the one name that the model knows back to namespace and name;
what a name may be and what a choice permits stands in ``ninfer/server/tools``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ninfer import spec
from ninfer.server.members import Members, objects, shown
from ninfer.server.neutral import refuse_unsupported
from ninfer.server.responses.namespaces import identity
from ninfer.server.tools import ChoiceKind, Declarations, Names, ToolChoice, ToolFields, permitted, tool_name

_SHOWN = ("name", "description", "parameters", "strict")
_UNSUPPORTED = "unsupported_value"


@dataclass(frozen=True, slots=True)
class ResponsesTools:
    """``functions``: namespace and name of each function by the model's name for it.

    ``choice`` is the kind of choice that the body makes; ``echo`` are the members of the Response object that
    repeat the request.
    """

    fields: ToolFields
    functions: Mapping[str, tuple[str | None, str]]
    choice: str | None
    echo: Mapping[str, Any]


def read_tools(body: Members) -> ResponsesTools:
    """``tools``, ``tool_choice``, ``parallel_tool_calls`` and ``tool_constraints``.

    Errors: ``RequestError`` naming the member.
    """
    tools = body.value("tools")
    if tools is not None and not isinstance(tools, list):
        raise body.wrong_type("tools", "an array")
    reader = _Reader()
    for tool in objects(tools or [], body.at("tools")):
        reader.add(tool)
    parallel = body.boolean("parallel_tool_calls") is not False
    basic = body.choice("tool_constraints", _table("tool_constraints")) == "basic"
    kind, names = _chosen(body)
    choice = ToolChoice(
        kind,
        body.at("tool_choice"),
        names,
        single_at=None if parallel else body.at("parallel_tool_calls"),
        constraints_at=body.at("tool_constraints") if basic else None,
    )
    return ResponsesTools(
        permitted(reader.declarations, choice),
        reader.functions,
        None if body.value("tool_choice") is None else kind,
        {
            "parallel_tool_calls": parallel,
            "tool_choice": "auto" if body.value("tool_choice") is None else body.value("tool_choice"),
            "tools": tools or [],
        },
    )


class _Reader:
    """Declares functions one by one."""

    def __init__(self) -> None:
        self.declarations = Declarations()
        self.functions: dict[str, tuple[str | None, str]] = {}

    def add(self, tool: Members) -> None:
        if _kind(tool) == "function":
            self._declare(tool, None, {})
            return
        namespace = tool_name(tool)
        extra = {name: tool.string(name) for name in ("name", "description") if tool.string(name) is not None}
        for function in tool.required_objects("tools"):
            function.required_string("type")
            function.choice("type", ("function",))
            self._declare(function, namespace, {"namespace": extra} if extra else {})
            extra = {}  # once, before the namespace's first function

    def _declare(self, function: Members, namespace: str | None, extra: Mapping[str, Any]) -> None:
        name = tool_name(function)
        _refuse_more(function)
        for text in ("description",):
            function.string(text)
        function.child("parameters")
        known = identity(namespace, name)
        # In received order, so that a client that sends the same tools again gets the same prompt.
        definition = {
            member: value
            for member, value in function.values.items()
            if member in _SHOWN and value is not None
        }
        definition["name"] = known
        self.declarations.add(
            Members({"name": known}, function.path),
            {"type": "function", "function": definition, **extra},
            strict=function.boolean("strict") or False,
        )
        self.functions[known] = (namespace, name)


def _kind(tool: Members) -> str:
    kind = tool.required_string("type")
    if kind not in _table("tools"):
        raise tool.invalid(
            "type",
            f"{shown(kind)} is not supported: NInfer provides functions and namespaces of them",
            _UNSUPPORTED,
        )
    return kind


def _refuse_more(function: Members) -> None:
    tables = spec.document("http/responses")
    refuse_unsupported(function, tables["refused_of_functions"])
    callers, direct = function.value("allowed_callers"), tables["direct_caller"]
    if callers is not None and (not isinstance(callers, list) or direct not in callers):
        raise function.invalid(
            "allowed_callers",
            f"must hold {direct}: NInfer does not run tools itself",
            "unsupported_parameter",
        )


def _chosen(body: Members) -> tuple[ChoiceKind, Names]:
    value = body.value("tool_choice")
    if value is None:
        return "auto", ()
    if isinstance(value, str):
        return cast(ChoiceKind, body.choice("tool_choice", _table("tool_choices"))), ()
    if not isinstance(value, dict):
        raise body.wrong_type("tool_choice", "a string or an object")
    chosen = Members(value, body.at("tool_choice"))
    chosen.required_string("type")
    if chosen.choice("type", ("function", "allowed_tools")) == "function":
        return "named", (_named(chosen),)
    chosen.required_string("mode")
    chosen.choice("mode", ("auto", "required"))
    names = []
    for tool in chosen.required_objects("tools"):
        tool.required_string("type")
        tool.choice("type", ("function",))
        names.append(_named(tool))
    return "allowed", tuple(names)


def _named(chosen: Members) -> tuple[str, str]:
    """The path and the model's name of a chosen function."""
    return chosen.at("name"), identity(chosen.string("namespace"), chosen.required_string("name"))


def _table(name: str) -> list[str]:
    values: list[str] = spec.document("http/responses")[name]
    return values
