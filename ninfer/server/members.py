"""Typed access to one JSON object of a request; every error names the member.

Owns the wording and codes of malformed values for every protocol. null stands for an absent member, as
OpenAI's optional fields have it, unless a member is required.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ninfer.errors import RequestError
from ninfer.server.json_body import json_type, member_path

_SHOWN_CHARACTERS = 40


class Members:
    """One JSON object and where it stands in the request."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self.values = values
        self.path = path

    def value(self, name: str) -> Any:
        """The member's value; None when absent or null."""
        return self.values.get(name)

    def has(self, name: str) -> bool:
        """Whether the member is there at all, null included."""
        return name in self.values

    def at(self, name: str) -> str:
        return member_path(self.path, name)

    def string(self, name: str) -> str | None:
        value: str | None = self._typed(name, str, "a string")
        return value

    def required_string(self, name: str) -> str:
        value = self.string(self._required(name))
        assert value is not None
        return value

    def boolean(self, name: str) -> bool | None:
        value: bool | None = self._typed(name, bool, "a boolean")
        return value

    def integer(self, name: str, minimum: int, maximum: int) -> int | None:
        value = self.value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong_type(name, "an integer")
        if not minimum <= value <= maximum:
            raise self.invalid(name, f"must be in {minimum}..{maximum}, not {value}")
        return int(value)

    def choice(self, name: str, allowed: Sequence[str]) -> str | None:
        value = self.string(name)
        if value is not None and value not in allowed:
            raise self.invalid(name, f"must be one of {', '.join(allowed)}, not {shown(value)}")
        return value

    def child(self, name: str) -> Members | None:
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong_type(name, "an object")
        return Members(value, self.at(name))

    def required_objects(self, name: str) -> list[Members]:
        """A required array of objects."""
        value = self.value(self._required(name))
        if not isinstance(value, list):
            raise self.wrong_type(name, "an array")
        return list(objects(value, self.at(name)))

    def missing(self, name: str) -> RequestError:
        return RequestError(
            "missing_required_parameter", f"{self.at(name)} is required but missing.", self.at(name)
        )

    def wrong_type(self, name: str, wanted: str) -> RequestError:
        return wrong_type(self.at(name), self.value(name), wanted)

    def invalid(self, name: str, problem: str, code: str = "invalid_value") -> RequestError:
        """An error about the member; ``problem`` follows its name in the message."""
        return RequestError(code, f"{self.at(name)} {problem}.", self.at(name))

    def _required(self, name: str) -> str:
        if name not in self.values:
            raise self.missing(name)
        if self.values[name] is None:
            raise self.wrong_type(name, "given")
        return name

    def _typed(self, name: str, kind: type[Any], wanted: str) -> Any:
        value = self.value(name)
        if value is not None and not isinstance(value, kind):
            raise self.wrong_type(name, wanted)
        return value


def objects(values: Sequence[Any], path: str) -> Iterator[Members]:
    """The objects of an array; an element of another type is an error that names its index."""
    for index, value in enumerate(values):
        if not isinstance(value, dict):
            raise wrong_type(member_path(path, index), value, "an object")
        yield Members(value, member_path(path, index))


def wrong_type(path: str, value: object, wanted: str) -> RequestError:
    return RequestError("invalid_type", f"{path} must be {wanted}, not {json_type(value)}.", path)


def shown(value: str) -> str:
    """A client's text in a message about it: ASCII, cut with its size so that the message stays a line."""
    if len(value) <= _SHOWN_CHARACTERS:
        return ascii(value)
    return f"{value[:_SHOWN_CHARACTERS]!a}... ({len(value)} characters)"
