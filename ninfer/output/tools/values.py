"""Untyped parameter text as the JSON value that a call carries.

Owns the typing rules of ``spec/tools.yaml``: declared types guide, they never refuse. No defaults, no
required members, nothing below the top level.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jiter
import msgspec

from ninfer import spec
from ninfer.prompt.conversation import Tool


@dataclass(frozen=True, slots=True)
class _Json:
    """A JSON value and its text: as written, unless a member was named twice."""

    value: Any
    text: str


@dataclass(frozen=True, slots=True)
class Value:
    """One argument: its JSON text, or None for an empty block that is left out."""

    json: str | None
    mismatched: bool = False


class ToolTypes:
    """The declared tools by name, with the types that guide each parameter."""

    def __init__(self, tools: tuple[Tool, ...]) -> None:
        self._types = {tool.name: dict(_declared_types(tool)) for tool in tools}

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def value(self, tool: str, parameter: str, text: str) -> Value:
        """The argument ``parameter`` of a call to ``tool``; ``text`` is what stands between its tags."""
        types = self._types.get(tool, {}).get(parameter, frozenset())
        if "string" in types:
            return Value(json_text(_unframed(text)))
        trimmed = text.strip(spec.document("tools")["white_space"])
        written = _json(trimmed)
        if not types:
            return Value(json_text(_unframed(text)) if written is None else written.text)
        if not trimmed:
            return Value(None)
        if "boolean" in types and trimmed.lower() in ("true", "false"):
            return Value(trimmed.lower())
        if written is None:
            return Value(json_text(trimmed), mismatched=True)
        return Value(written.text, mismatched=not any(_admits(kind, written.value) for kind in types))


def json_text(text: str) -> str:
    """``text`` as a JSON string."""
    return msgspec.json.encode(text).decode()


def _declared_types(tool: Tool) -> Iterator[tuple[str, frozenset[str]]]:
    function = tool.definition.get("function", tool.definition)
    schema = function.get("parameters") if isinstance(function, Mapping) else None
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if isinstance(properties, Mapping):
        for name, declared in properties.items():
            yield name, guiding_types(declared)


def guiding_types(schema: Any) -> frozenset[str]:
    """The types that ``schema`` names at its top level; empty where none guides."""
    if not isinstance(schema, Mapping):
        return frozenset()
    rules = spec.document("tools")
    if "type" in schema:
        return _named(schema["type"], rules["types"])
    for union in ("anyOf", "oneOf"):
        members = schema.get(union)
        if isinstance(members, list) and members:
            named = [
                _named(member.get("type"), rules["unions"]) if isinstance(member, Mapping) else frozenset()
                for member in members
            ]
            return frozenset[str]().union(*named) if all(named) else frozenset()
    return frozenset()


def _named(kinds: Any, allowed: list[str]) -> frozenset[str]:
    """One type or a list of them; empty where one is unknown."""
    listed = kinds if isinstance(kinds, list) else [kinds]
    known = all(isinstance(kind, str) and kind in allowed for kind in listed)
    return frozenset(listed) if known else frozenset()


def _json(text: str) -> _Json | None:
    """The JSON value that ``text`` is, if clients can read it and send it back.

    Not so: deeper than our own reader goes, numbers beyond a float, half a character. A member named twice
    keeps its last value at its first place.
    """
    wrapped = f"[{text}]".encode()  # as deep as it will stand in the arguments
    try:
        values = jiter.from_json(wrapped, allow_inf_nan=False)
        twice = not _unique(wrapped)
    except ValueError:
        return None
    if len(values) != 1 or not all(map(_has_float, _numbers(values))):
        return None
    once = json.dumps(values[0], ensure_ascii=False, separators=(",", ":")) if twice else text
    return _Json(values[0], once)


def _unique(text: bytes) -> bool:
    """Whether valid JSON names no member twice."""
    try:
        jiter.from_json(text, catch_duplicate_keys=True, allow_inf_nan=False)
    except ValueError:
        return False
    return True


def _numbers(root: Any) -> Iterator[float]:
    pending = [root]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, int | float):
            yield value


def _has_float(number: float) -> bool:
    return abs(number) <= sys.float_info.max if isinstance(number, int) else math.isfinite(number)


def _admits(kind: str, value: Any) -> bool:
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "integer":
        return isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
    return isinstance(value, {"string": str, "array": list, "object": dict}[kind])


def _unframed(text: str) -> str:
    """Without the one line break that frames a value on each side."""
    for line_break in _line_breaks():
        if text.startswith(line_break):
            text = text[len(line_break) :]
            break
    for line_break in _line_breaks():
        if text.endswith(line_break):
            return text[: -len(line_break)]
    return text


@functools.cache
def _line_breaks() -> tuple[str, ...]:
    return tuple(spec.document("tools")["framing_line_breaks"])
