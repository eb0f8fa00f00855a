"""A request body as one JSON object, or the 400 that says what is wrong with it.

Owns the bytes-to-values step for every protocol. Member order is kept. Stricter than most parsers, because
a value silently changed here is a request silently misread: duplicate members, lone surrogates, NaN, numbers
without a float value and anything but one object are refused.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import jiter

from ninfer import spec
from ninfer.errors import RequestError


class NotAnObject(ValueError):
    """Text that is not one acceptable JSON object; ``path`` is the member at fault, if one is."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem)
        self.path = path


def parse_object(body: bytes) -> dict[str, Any]:
    """The body's members in received order. Errors: ``RequestError`` ``invalid_json``."""
    try:
        return read_object(body)
    except NotAnObject as error:
        raise RequestError(
            "invalid_json", f"The request body is not valid JSON: {error}.", error.path or None
        ) from error


def read_object(text: bytes) -> dict[str, Any]:
    """The members of one JSON object in received order. Errors: ``NotAnObject``."""
    if not text or text.isspace():
        raise NotAnObject("it is empty; a JSON object is expected")
    _check_size(text)
    try:
        value = jiter.from_json(text, catch_duplicate_keys=True, allow_inf_nan=False)
    except ValueError as error:
        raise NotAnObject(str(error)) from error
    except RecursionError as error:
        raise NotAnObject("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise NotAnObject(f"it is {json_type(value)}; a JSON object is expected")
    if not _all_have_floats(value):
        path = next(_paths_without_float(value))
        raise NotAnObject(f"the number at {path} is out of range", path)
    return value


def json_type(value: object) -> str:
    """What ``value`` is called in JSON, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def member_path(parent: str, key: str | int) -> str:
    """The path of a member in error messages and ``param``: ``messages[0].content``."""
    if isinstance(key, int):
        return f"{parent}[{key}]"
    return f"{parent}.{key}" if parent else key


def _check_size(text: bytes) -> None:
    """Refuse a body that would become more Python objects than memory should hold.

    An empty array of three bytes takes twenty times that much as a value. Commas and brackets inside strings
    count too, which matters to no real text: the limit is far beyond any context.
    """
    most: int = spec.document("http/transport")["max_json_values"]
    if len(text) > most and text.count(b",") + text.count(b"[") + text.count(b"{") > most:
        raise NotAnObject(f"it holds more than {most} values")


def _all_have_floats(root: dict[str, Any]) -> bool:
    pending: list[Any] = [root]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, int | float) and not _has_float(value):
            return False
    return True


def _paths_without_float(root: dict[str, Any]) -> Iterator[str]:
    """Where the numbers stand that have none, the last first."""
    pending: list[tuple[str, Any]] = [("", root)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict):
            pending.extend((member_path(path, key), item) for key, item in value.items())
        elif isinstance(value, list):
            pending.extend((member_path(path, index), item) for index, item in enumerate(value))
        elif isinstance(value, int | float) and not _has_float(value):
            yield path


def _has_float(value: float) -> bool:
    """Whether a finite float can stand for ``value``; a larger integer fails where the two are compared."""
    if isinstance(value, int):
        return abs(value) <= sys.float_info.max
    return math.isfinite(value)
