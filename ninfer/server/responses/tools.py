"""The tools of a Responses body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ninfer.server.members import Members


@dataclass(frozen=True, slots=True)
class ToolFields:
    """``echo`` are the members of the Response object that repeat the request."""

    echo: dict[str, Any]


def read_tools(body: Members) -> ToolFields:
    """Errors: ``RequestError`` naming the member."""
    if body.value("tools"):
        raise body.invalid(
            "tools", "is not supported yet: NInfer does not provide tool calls", "unsupported_parameter"
        )
    if (choice := body.value("tool_choice")) not in (None, "none", "auto"):
        raise body.invalid("tool_choice", "is not supported yet", "unsupported_parameter")
    parallel = body.boolean("parallel_tool_calls")
    return ToolFields(
        {"parallel_tool_calls": parallel is not False, "tool_choice": choice or "auto", "tools": []}
    )
