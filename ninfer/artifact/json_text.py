"""Directory text ↔ plain values, strictly.

Owns the JSON rules the container sets on top of JSON: unique members, finite numbers, UTF-8, bounded depth.
Errors name the byte of the file.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import jiter

from ninfer.artifact.contract import container
from ninfer.errors import ArtifactError

_POSITION = re.compile(r" at line (\d+) column (\d+)$")


def parse(text: bytes) -> Any:
    """The value of a directory text that starts right behind the entry header.

    Errors: ``ArtifactError`` naming the byte for malformed JSON or UTF-8, duplicate members and too deep
    nesting, and naming the member for a number that is not finite (``1e999``).
    """
    try:
        value = jiter.from_json(text, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode="keys")
    except ValueError as error:
        message = str(error)
        raise ArtifactError(f"byte {_offset(text, message)}", shorten(_POSITION.sub("", message))) from None
    except MemoryError as error:
        raise ArtifactError("directory", f"{len(text)} bytes of JSON do not fit into memory") from error
    return value


def render(value: Any) -> bytes:
    """Compact UTF-8 JSON, non-ASCII unescaped.

    Errors: ``ArtifactError`` for values JSON cannot hold (NaN, foreign types, lone surrogates).
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ArtifactError("directory", f"cannot be written as JSON: {error}") from error


def check_finite(value: Any, where: str) -> None:
    """Refuse infinite numbers, which ``1e999`` parses to, anywhere below ``value``.

    Errors: ``ArtifactError`` naming the member.
    """
    if type(value) is float:
        if not math.isfinite(value):
            raise ArtifactError(where, "the number does not fit a double")
    elif type(value) is dict:
        for key, item in value.items():
            check_finite(item, f"{where}.{shorten(key)}")
    elif type(value) is list:
        for index, item in enumerate(value):
            check_finite(item, f"{where}[{index}]")


def shorten(name: object) -> str:
    """``name`` for a message: at most about a hundred characters."""
    text = str(name)
    return text if len(text) <= 100 else f"{text[:60]}…{text[-30:]}"


def _offset(text: bytes, message: str) -> int:
    found = _POSITION.search(message)
    if found is None:
        return container().header_bytes
    line, column = int(found[1]), int(found[2])
    start = 0
    for _ in range(line - 1):
        start = text.index(b"\n", start) + 1
    return container().header_bytes + min(start + max(column - 1, 0), len(text))
