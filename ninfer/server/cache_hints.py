"""What OpenAI's protocols say about prompt caching: marks on parts, and whether the request's end counts.

Owns the reading of these fields. They are advice: residency follows memory, and no prompt or answer changes.
"""

from __future__ import annotations

from typing import Any

from ninfer import spec
from ninfer.server.members import Members, shown


def read_automatic(body: Members) -> bool:
    """Whether the end of the last content part is a write candidate of its own.

    Errors: ``RequestError`` for a mode, lifetime or retention that does not exist.
    """
    tables: Any = spec.document("cache")["hints"]
    body.string("prompt_cache_key")
    body.choice("prompt_cache_retention", tables["retentions"])
    options = body.child("prompt_cache_options")
    if options is None:
        return True
    mode = options.choice("mode", tables["modes"])
    ttl = options.string("ttl")
    number, unit = (ttl[:-1], ttl[-1:]) if ttl is not None else ("1", "s")
    if unit not in tuple("smhd") or not (number.isascii() and number.isdigit() and int(number[:9])):
        raise options.invalid(
            "ttl", f"must be a positive duration such as 30m or 24h, not {shown(ttl or '')}"
        )
    return mode != "explicit"


def read_breakpoint(part: Members) -> bool:
    """Whether a content part is marked. Errors: ``RequestError`` for a mark of another mode."""
    mark = part.child("prompt_cache_breakpoint")
    if mark is None:
        return False
    mark.required_string("mode")
    mark.choice("mode", ("explicit",))
    return True
