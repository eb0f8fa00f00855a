"""One raw command-line word → one typed value, checked against its row of ``spec/options.yaml``.

Owns the spelling of numbers, lists and pairs; knows nothing of other options.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from ninfer.errors import OptionError
from ninfer.spec.options import Option

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?")
_DIGITS_MAX = 40  # beyond any range in the table; keeps int() from refusing or crawling
_TREE_ROWS_MAX = 8
_SHOWN_MAX = 60


def parse_value(option: Option, raw: str, owners: Mapping[str, str]) -> Any:
    """The value that ``raw`` spells; ``owners`` explains choices that do not work yet.

    Errors: ``OptionError`` naming the option, the value and what would be right.
    """
    return _PARSERS[option.type](option, raw, owners)


def range_text(option: Option) -> str:
    """The option's range in words, such as ``0..65535`` or ``at least 1``; empty without one."""
    low, high = option.minimum, option.maximum
    if low is None:
        return ""
    if option.maximum_text is not None:
        return f"{low}..{option.maximum_text}"
    return f"at least {low}" if high is None else f"{low}..{high}"


def shown(raw: str) -> str:
    """``raw`` quoted for a one-line message, cut when long."""
    return repr(raw if len(raw) <= _SHOWN_MAX else raw[:_SHOWN_MAX] + "…")


def _refuse(option: Option, raw: str, expected: str) -> OptionError:
    value = "the value" if option.secret else shown(raw)
    return OptionError(option.name, f"{value} is not {expected}")


def _expected(option: Option, noun: str) -> str:
    bounds = range_text(option)
    return f"{noun} of {bounds}" if bounds else noun


def _check_range(option: Option, raw: str, number: float, noun: str) -> None:
    below = option.minimum is not None and number < option.minimum
    above = option.maximum is not None and number > option.maximum
    if below or above:
        raise _refuse(option, raw, _expected(option, noun))


def _string(option: Option, raw: str, _: Mapping[str, str]) -> str:
    if not raw and not option.allow_empty:
        raise OptionError(option.name, "must not be empty")
    try:
        raw.encode("utf-8")
    except UnicodeEncodeError:
        raise OptionError(option.name, "is not valid UTF-8") from None
    return raw


def _file(option: Option, raw: str, _: Mapping[str, str]) -> str:
    if not raw:
        raise OptionError(option.name, "must name a path")
    return raw


def _integer(option: Option, raw: str, _: Mapping[str, str]) -> int:
    if not _INTEGER.fullmatch(raw) or len(raw) > _DIGITS_MAX:
        raise _refuse(option, raw, _expected(option, "an integer"))
    _check_range(option, raw, int(raw), "an integer")
    return int(raw)


def _number(option: Option, raw: str, _: Mapping[str, str]) -> float:
    if not _NUMBER.fullmatch(raw):
        raise _refuse(option, raw, _expected(option, "a finite number"))
    number = float(raw)
    if not math.isfinite(number):
        raise _refuse(option, raw, _expected(option, "a finite number"))
    _check_range(option, raw, number, "a number")
    return number


def _integer_or_auto(option: Option, raw: str, owners: Mapping[str, str]) -> int | str:
    if raw == "auto":
        return raw
    if not _INTEGER.fullmatch(raw):
        raise _refuse(option, raw, f"auto or {_expected(option, 'an integer')}")
    return _integer(option, raw, owners)


def _mebibytes(option: Option, raw: str, _: Mapping[str, str]) -> int:
    """Decimal MiB → bytes, exactly."""
    if not _DECIMAL.fullmatch(raw) or len(raw) > _DIGITS_MAX:
        raise _refuse(option, raw, "a decimal number of MiB")
    size = Fraction(raw) * 2**20
    if size.denominator != 1:
        raise _refuse(option, raw, "a number of MiB that comes to whole bytes")
    return int(size)


def _choice(option: Option, raw: str, owners: Mapping[str, str]) -> str:
    for choice in option.choices:
        if choice.value == raw:
            if not choice.works:
                raise OptionError(
                    option.name, f"{raw} is not available yet: it comes with {owners[choice.owner]}"
                )
            return raw
    raise _refuse(option, raw, "one of " + ", ".join(choice.value for choice in option.choices))


def _on_off(option: Option, raw: str, _: Mapping[str, str]) -> bool:
    if raw not in ("on", "off"):
        raise _refuse(option, raw, "on or off")
    return raw == "on"


def _tree_nodes(option: Option, raw: str, owners: Mapping[str, str]) -> str | tuple[int, ...]:
    """``auto``, or verified columns by batch size: 0 for a chain, else within the option's range."""
    if raw == "auto":
        return raw
    entries = raw.split(",")
    if len(entries) > _TREE_ROWS_MAX:
        raise _refuse(option, raw, f"a list of at most {_TREE_ROWS_MAX} batch sizes")
    return tuple(0 if entry == "0" else _integer(option, entry, owners) for entry in entries)


def _key_value(option: Option, raw: str, owners: Mapping[str, str]) -> tuple[str, str]:
    key, equals, value = _string(option, raw, owners).partition("=")
    if not key or not equals:
        raise _refuse(option, raw, f"of the form {option.metavar}")
    return key, value


def _integer_list(option: Option, raw: str, owners: Mapping[str, str]) -> tuple[int, ...]:
    return tuple(_integer(option, entry, owners) for entry in raw.split(","))


def _pair_list(option: Option, raw: str, owners: Mapping[str, str]) -> tuple[tuple[int, ...], ...]:
    pairs = tuple(_integer_list(option, pair, owners) for pair in raw.split(";"))
    if any(len(pair) != 2 for pair in pairs):
        raise _refuse(option, raw, f"of the form {option.metavar}")
    return pairs


_PARSERS: Mapping[str, Callable[[Option, str, Mapping[str, str]], Any]] = {
    "string": _string,
    "file": _file,
    "integer": _integer,
    "number": _number,
    "choice": _choice,
    "on_off": _on_off,
    "integer_or_auto": _integer_or_auto,
    "mebibytes": _mebibytes,
    "tree_nodes": _tree_nodes,
    "key_value": _key_value,
    "integer_list": _integer_list,
    "pair_list": _pair_list,
}
