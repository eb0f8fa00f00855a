"""The typed view of ``spec/http/errors.yaml``: what each error code means on the wire.

Owns codes, statuses and wire types as frozen values; ``ninfer/server/errors.py`` makes bodies of them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from ninfer.errors import SpecError
from ninfer.spec.documents import document


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One error code.

    ``status`` and ``type`` are those of the OpenAI-style routes. A code that is not ``in_use`` belongs to
    work that has not landed. ``retry_after_s`` becomes a Retry-After header.
    """

    code: str
    status: int
    type: str
    in_use: bool
    meaning: str
    retry_after_s: int | None = None


@functools.cache
def error_table() -> Mapping[str, ErrorRow]:
    """Every error code → its row, in the order of the document."""
    return {code: ErrorRow(code, **row) for code, row in document("http/errors")["errors"].items()}


def error_row(code: str) -> ErrorRow:
    """The row of ``code``. Errors: ``SpecError`` when the document has none."""
    try:
        return error_table()[code]
    except KeyError:
        raise SpecError(f"http/errors: no code {code!r}") from None
