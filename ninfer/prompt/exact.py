"""Equality of JSON-like values as a template could see it.

Owns the comparison only: member order counts, and 1, 1.0 and true differ, as all of them render differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninfer.prompt.provenance import Traced

_SCALARS = (str, int, float, bool, type(None))


def same(left: Any, right: Any) -> bool:
    """Whether both are the same JSON-like value; values of any other kind equal only themselves."""
    if left is right:
        return True
    if isinstance(left, Mapping):
        return (
            isinstance(right, Mapping)
            and len(left) == len(right)
            and all(
                key == other and same(left[key], right[other]) for key, other in zip(left, right, strict=True)
            )
        )
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Traced):
        return bool(left.spans == right.spans and left == right)
    return isinstance(left, _SCALARS) and bool(left == right)
