"""The one name under which the model knows a function of a namespace.

Owns the join. A name has no letter to spare for a separator that no name holds, so a pair whose join could be
read in two ways is told apart by a digest.
"""

from __future__ import annotations

import hashlib

_SEPARATOR = "--"
_DIGEST_LETTERS = 8


def identity(namespace: str | None, name: str) -> str:
    """``name`` itself, or its join with the namespace: different for different pairs."""
    if namespace is None:
        return name
    joined = namespace + _SEPARATOR + name
    if joined.split(_SEPARATOR) == [namespace, name]:
        return joined
    digest = hashlib.sha256(f"{len(namespace)}:{joined}".encode()).hexdigest()[:_DIGEST_LETTERS]
    return joined + _SEPARATOR + digest
