"""The members of a body that are not honoured: hints, neutral values, refusals and unknown ones.

Owns the reading of the field tables of ``spec/http/responses.yaml``. Unlike on Chat nothing unknown is
ignored.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ninfer import spec
from ninfer.errors import RequestError
from ninfer.server.cache_hints import read_automatic
from ninfer.server.members import Members, shown
from ninfer.server.neutral import refuse_unsupported


def check_fields(body: Members) -> None:
    """Errors: ``RequestError`` for the first member that is unknown, malformed or asks too much."""
    tables = spec.document("http/responses")
    _refuse_unknown(body, (*tables["read"], *tables["hints"], *tables["refused"]))
    refuse_unsupported(body, tables["refused"])
    for name, kind in tables["hints"].items():
        body.string(name) if kind == "string" else body.child(name)
    for name, rows in tables["members"].items():
        if (child := body.child(name)) is not None:
            _refuse_unknown(child, (*rows["read"], *rows["refused"]))
            refuse_unsupported(child, rows["refused"])
    read_automatic(body)  # what prompt caching is told has its form
    _check_metadata(body, tables["metadata"])


def _refuse_unknown(members: Members, known: Collection[str]) -> None:
    for name in members.values:
        if name not in known:
            path = members.at(name)
            raise RequestError(
                "unknown_parameter", f"{shown(path)} is not a parameter of this endpoint.", path
            )


def _check_metadata(body: Members, limits: Any) -> None:
    metadata = body.child("metadata")
    if metadata is None:
        return
    if (count := len(metadata.values)) > limits["entries"]:
        raise body.invalid("metadata", f"may hold at most {limits['entries']} pairs, not {count}")
    for key, value in metadata.values.items():
        if not isinstance(value, str):
            raise body.invalid(
                "metadata", f"must hold strings, but {shown(key)} has another type", "invalid_type"
            )
        for text, most in ((key, limits["key_characters"]), (value, limits["value_characters"])):
            if len(text) > most:
                raise body.invalid(
                    "metadata",
                    f"may hold texts of at most {most} characters here, not {len(text)}: {shown(text)}",
                )
