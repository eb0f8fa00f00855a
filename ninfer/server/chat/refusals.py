"""Fields that ask for what this server cannot do: refused by name, or accepted when they ask for nothing.

Owns the reading of ``spec/http/chat.yaml``; which field, which neutral value and which reason stand there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ninfer import spec
from ninfer.server.members import Members

_Row = Mapping[str, Any]


def refuse_unsupported(body: Members, stream: bool) -> None:
    """Errors: ``RequestError`` for the first field whose value asks for a missing capability."""
    tables = spec.document("http/chat")
    rows: dict[str, _Row] = dict(tables["refused"])
    if stream:
        rows |= tables["refused_in_streams"]
    for name, row in rows.items():
        value = body.value(name)
        if value is not None and not _NEUTRAL[row["neutral"]](value, row):
            raise body.invalid(
                name, f"is not supported: NInfer does not provide {row['lacking']}", row["code"]
            )


def _is_number(value: object, wanted: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and value == wanted


_NEUTRAL: Mapping[str, Callable[[Any, _Row], bool]] = {
    "false": lambda value, row: value is False,
    "zero": lambda value, row: _is_number(value, 0),
    "one": lambda value, row: _is_number(value, 1),
    "empty": lambda value, row: value in ([], {}, ""),
    "all_zero": lambda value, row: (
        isinstance(value, dict) and all(_is_number(bias, 0) for bias in value.values())
    ),
    "all_null": lambda value, row: isinstance(value, dict) and all(item is None for item in value.values()),
    "any_of": lambda value, row: value in row["values"],
    "never": lambda value, row: False,
}
