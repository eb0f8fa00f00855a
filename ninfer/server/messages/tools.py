"""Tool declarations and choice of a Messages body.

Owns this protocol's members; what a name may be and what a choice permits stands in ``ninfer/server/tools``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ninfer.server.members import Members, objects
from ninfer.server.messages.cache_control import CacheMarkers
from ninfer.server.tools import ChoiceKind, Declarations, ToolChoice, ToolFields, permitted, tool_name

_LACKING = "unsupported_parameter"
_CHOICES: dict[str, ChoiceKind] = {"auto": "auto", "any": "required", "tool": "named", "none": "none"}


def read_tools(body: Members, markers: CacheMarkers) -> ToolFields:
    """``tools``, ``tool_choice`` and ``tool_constraints``. Errors: ``RequestError`` naming the field."""
    value = body.value("tools")
    if value is not None and not isinstance(value, list):
        raise body.wrong_type("tools", "an array")
    declarations = Declarations()
    for tool in objects(value or [], body.at("tools")):
        _declare(declarations, tool)
        markers.block(tool)
    return permitted(declarations, _choice(body))


def _declare(declarations: Declarations, tool: Members) -> None:
    kind = tool.string("type")
    if kind not in (None, "custom"):
        raise tool.invalid("type", f"{kind[:40]!a} is not supported: NInfer has no server tools", _LACKING)
    if tool.boolean("defer_loading"):
        raise tool.invalid("defer_loading", "is not supported: NInfer does not load tools later", _LACKING)
    callers = tool.value("allowed_callers")
    if callers is not None and (not isinstance(callers, list) or "direct" not in callers):
        raise tool.invalid("allowed_callers", "must hold direct: NInfer does not run tools itself", _LACKING)
    strict = tool.boolean("strict") or False
    schema = tool.child("input_schema")
    if schema is None:
        raise tool.missing("input_schema")
    if schema.value("type") != "object":
        raise schema.invalid("type", "must be object")
    function = dict(_function(tool, schema))
    declarations.add(tool, {"type": "function", "function": function}, strict=strict)


def _function(tool: Members, schema: Members) -> Iterator[tuple[str, Any]]:
    """The tool as the chat template shows it."""
    yield "name", tool_name(tool)
    description = tool.string("description")
    if description is not None:
        yield "description", description
    yield "parameters", schema.values
    examples = tool.value("input_examples")
    if examples is not None:
        if not isinstance(examples, list) or not all(isinstance(example, dict) for example in examples):
            raise tool.wrong_type("input_examples", "an array of objects")
        yield "input_examples", examples


def _choice(body: Members) -> ToolChoice:
    basic = body.choice("tool_constraints", ("basic", "auto")) == "basic"
    constraints_at = body.at("tool_constraints") if basic else None
    choice = body.child("tool_choice")
    if choice is None:
        return ToolChoice(constraints_at=constraints_at)
    choice.required_string("type")
    kind = choice.choice("type", tuple(_CHOICES))
    assert kind is not None
    single = choice.boolean("disable_parallel_tool_use") or False
    return ToolChoice(
        _CHOICES[kind],
        choice.at("type"),
        ((choice.at("name"), choice.required_string("name")),) if kind == "tool" else (),
        single_at=choice.at("disable_parallel_tool_use") if single else None,
        constraints_at=constraints_at,
    )
