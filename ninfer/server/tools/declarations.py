"""Declared tools: their names and what the chat template shows of them.

Owns names (``spec/tools.yaml``), their uniqueness and the form of a custom tool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ninfer import spec
from ninfer.prompt.conversation import Tool
from ninfer.server.members import Members

_SHOWN_CHARACTERS = 40


class Declarations:
    """The tools of one request in received order.

    ``strict_at`` is the path of the first member that asks for enforced arguments.
    """

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self._places: dict[str, str] = {}
        self.strict_at: str | None = None

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(self._tools.values())

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def add(self, named: Members, definition: Mapping[str, Any], *, strict: bool = False) -> Tool:
        """Declare the tool whose ``name`` (and ``strict``) stand in ``named``.

        ``definition`` is the object that the template renders: ``{"type": "function", "function": …}``.
        Errors: ``RequestError`` for a name that no call could have, or that another tool has.
        """
        name = tool_name(named)
        if name in self._tools:
            raise named.invalid("name", f"{name!a} is declared by {self._places[name]} already")
        self._places[name] = named.path
        self._tools[name] = tool = Tool(name, definition)
        if strict and self.strict_at is None:
            self.strict_at = named.at("strict")
        return tool


def tool_name(members: Members, member: str = "name") -> str:
    """A required tool name. Errors: ``RequestError`` with the name, its size and where it stands."""
    name = members.required_string(member)
    rules = spec.document("tools")["names"]
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > rules["max_bytes"]:
        raise members.invalid(
            member, f"{_shown(name)} has {size} bytes; a tool name has at most {rules['max_bytes']}"
        )
    if re.fullmatch(rules["pattern"], name) is None:
        raise members.invalid(
            member, f"{_shown(name)} ({size} bytes) must consist of ASCII letters, digits, _ and - only"
        )
    return name


def custom_definition(name: str, description: str | None) -> dict[str, Any]:
    """A free-form tool as the model sees it: a function with one string."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    member: str = spec.document("tools")["custom_tool_input"]
    function["parameters"] = {
        "type": "object",
        "properties": {member: {"type": "string"}},
        "required": [member],
    }
    return {"type": "function", "function": function}


def _shown(name: str) -> str:
    """A client's name in a message about it: ASCII, cut."""
    return ascii(name) if len(name) <= _SHOWN_CHARACTERS else ascii(name[:_SHOWN_CHARACTERS]) + "…"
