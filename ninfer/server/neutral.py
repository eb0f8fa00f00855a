"""Fields that ask for what this server cannot do: refused by name, or accepted when they ask for nothing.

Owns what a neutral value is; which field, which value and which reason stand in the protocols' tables under
``spec/http``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ninfer.server.members import Members

Row = Mapping[str, Any]


def refuse_unsupported(body: Members, rows: Mapping[str, Row]) -> None:
    """Errors: ``RequestError`` for the first field of ``rows`` whose value asks for a missing capability."""
    for name, row in rows.items():
        value = body.value(name)
        if value is not None and not is_neutral(value, row):
            raise body.invalid(
                name, f"is not supported: NInfer does not provide {row['lacking']}", row["code"]
            )


def is_neutral(value: Any, row: Row) -> bool:
    """Whether ``value``, which is not null, asks for nothing by ``row['neutral']``."""
    return _NEUTRAL[row["neutral"]](value, row)


def _is_number(value: object, wanted: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and value == wanted


_NEUTRAL: Mapping[str, Callable[[Any, Row], bool]] = {
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
