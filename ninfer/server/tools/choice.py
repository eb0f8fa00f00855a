"""What a request's choice of tools permits, and what of it needs constraints on the output.

Owns the refusals of what free generation cannot promise; they fall as constraints arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ninfer.errors import RequestError
from ninfer.prompt.conversation import Tool
from ninfer.server.tools.declarations import Declarations

ChoiceKind = Literal["auto", "none", "required", "named", "allowed"]
Names = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ToolFields:
    """``declared`` stand in the prompt; ``callable`` are those whose calls are read out of the answer.

    ``choice`` is None without tools.
    """

    declared: tuple[Tool, ...] = ()
    callable: tuple[Tool, ...] = ()
    choice: ChoiceKind | None = None


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """``names`` (path of each name → name) are those that a named or an allowed choice lists.

    ``at`` is where the choice stands; ``single_at``: where at most one call is asked for, if it is;
    ``constraints_at``: where basic constraints are asked for by name.
    """

    kind: ChoiceKind = "auto"
    at: str = "tool_choice"
    names: Names = ()
    single_at: str | None = None
    constraints_at: str | None = None


def permitted(declarations: Declarations, choice: ToolChoice) -> ToolFields:
    """The tools in the prompt and those that may be called.

    Errors: ``RequestError``: ``invalid_value`` for a choice among tools that are not declared,
    ``unsupported_value`` naming the field that needs constraints. What asks for nothing passes: a limit on
    calls, or constraints, where no call can be made.
    """
    tools = declarations.tools
    for path, name in choice.names:
        if name not in declarations:
            raise RequestError("invalid_value", f"{path} {name!a} is not a declared tool.", path)
    if not tools and choice.kind not in ("auto", "none"):
        raise RequestError(
            "invalid_value", f"{choice.at} asks for a call, but no tools are declared.", choice.at
        )
    if declarations.strict_at is not None:
        raise _lacking(declarations.strict_at, "enforced arguments (strict true)")
    if not tools:
        return ToolFields()
    if choice.kind == "none":
        return ToolFields(tools, choice="none")
    if choice.kind != "auto":
        raise _lacking(choice.at, "forced or selected tool calls")
    if choice.single_at is not None:
        raise _lacking(choice.single_at, "a limit on the number of tool calls")
    if choice.constraints_at is not None:
        raise _lacking(choice.constraints_at, 'constrained tool calls ("basic"; "auto" generates freely)')
    return ToolFields(tools, tools, choice.kind)


def _lacking(path: str, lacking: str) -> RequestError:
    return RequestError(
        "unsupported_value", f"{path} is not supported: NInfer does not provide {lacking} yet.", path
    )
