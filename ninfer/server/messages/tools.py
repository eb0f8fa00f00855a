"""Tool declarations and choice of a Messages body.

Owns this protocol's members; names and what calls may be are the business of ``ninfer/server/tools``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ninfer.prompt.conversation import Tool
from ninfer.server.members import Members, objects
from ninfer.server.messages.cache_control import CacheMarkers

_UNSUPPORTED = "unsupported_value"
_CHOICES = ("auto", "any", "tool", "none")


@dataclass(frozen=True, slots=True)
class ToolFields:
    """``declared`` stand in the prompt; ``callable`` are those whose calls are read out of the answer."""

    declared: tuple[Tool, ...] = ()
    callable: tuple[Tool, ...] = ()


def read_tools(body: Members, markers: CacheMarkers) -> ToolFields:
    """``tools``, ``tool_choice`` and ``tool_constraints``. Errors: ``RequestError`` naming the field."""
    value = body.value("tools")
    if value is not None and not isinstance(value, list):
        raise body.wrong_type("tools", "an array")
    declared = tuple(_declared(objects(value or [], body.at("tools")), markers))
    choice = _choice(body)
    constraints = body.choice("tool_constraints", ("auto", "basic"))
    if constraints == "basic":
        raise body.invalid(
            "tool_constraints", "basic is not supported: NInfer does not provide it yet", _UNSUPPORTED
        )
    return ToolFields(declared, () if choice == "none" else declared)


def _declared(tools: Iterator[Members], markers: CacheMarkers) -> Iterator[Tool]:
    names: set[str] = set()
    for tool in tools:
        made = _tool(tool)
        if made.name in names:
            raise tool.invalid("name", f"{made.name!r} is declared twice")
        names.add(made.name)
        markers.block(tool)
        yield made


def _tool(tool: Members) -> Tool:
    kind = tool.string("type")
    if kind not in (None, "custom"):
        raise tool.invalid(
            "type",
            f"{kind!r} is not supported: NInfer does not provide server tools",
            "unsupported_parameter",
        )
    if tool.boolean("defer_loading"):
        raise tool.invalid(
            "defer_loading", "is not supported: NInfer does not load tools later", "unsupported_parameter"
        )
    callers = tool.value("allowed_callers")
    if callers is not None and (not isinstance(callers, list) or "direct" not in callers):
        raise tool.invalid(
            "allowed_callers",
            "must hold direct: NInfer does not run tools itself",
            "unsupported_parameter",
        )
    if tool.boolean("strict"):
        raise tool.invalid(
            "strict", "true is not supported: NInfer does not enforce schemas yet", _UNSUPPORTED
        )
    schema = tool.child("input_schema")
    if schema is None:
        raise tool.missing("input_schema")
    if schema.value("type") != "object":
        raise schema.invalid("type", "must be object")
    name = tool.required_string("name")
    return Tool(name, {"type": "function", "function": dict(_function(tool, name, schema))})


def _function(tool: Members, name: str, schema: Members) -> Iterator[tuple[str, Any]]:
    """The tool as the chat template shows it."""
    yield "name", name
    description = tool.string("description")
    if description is not None:
        yield "description", description
    yield "parameters", schema.values
    examples = tool.value("input_examples")
    if examples is not None:
        if not isinstance(examples, list) or not all(isinstance(example, dict) for example in examples):
            raise tool.wrong_type("input_examples", "an array of objects")
        yield "input_examples", examples


def _choice(body: Members) -> str:
    choice = body.child("tool_choice")
    if choice is None:
        return "auto"
    choice.required_string("type")
    kind = choice.choice("type", _CHOICES)
    assert kind is not None
    if kind in ("any", "tool"):
        raise choice.invalid("type", f"{kind} is not supported: NInfer cannot force a call yet", _UNSUPPORTED)
    if choice.boolean("disable_parallel_tool_use"):
        raise choice.invalid(
            "disable_parallel_tool_use",
            "true is not supported: NInfer cannot limit calls to one yet",
            _UNSUPPORTED,
        )
    return kind
