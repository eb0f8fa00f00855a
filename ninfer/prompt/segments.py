"""Token ids of ordinary text, remembered by content, least recently used first out.

Owns the cache; it never changes a result, only its cost.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from ninfer.prompt.tokenizer import TokenArray

_ENTRY_BYTES = 200  # an entry's objects beside its text and ids


class SegmentCache:
    """At most ``capacity_bytes`` of texts and ids; safe to share between threads."""

    def __init__(self, encode: Callable[[Sequence[str]], list[TokenArray]], capacity_bytes: int) -> None:
        self._encode = encode
        self._capacity = capacity_bytes
        self._held: OrderedDict[str, TokenArray] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """What the entries take, estimated from above."""
        return self._bytes

    def encode(self, texts: Sequence[str]) -> list[TokenArray]:
        """The ids of each text, int32 [n]; treat them as read-only.

        Errors: ``ValueError`` where a text holds a lone surrogate.
        """
        found: list[TokenArray | None] = []
        with self._lock:
            for text in texts:
                ids = self._held.get(text)
                if ids is not None:
                    self._held.move_to_end(text)
                found.append(ids)
        missing = list({text: None for text, ids in zip(texts, found, strict=True) if ids is None})
        if not missing:
            return [ids for ids in found if ids is not None]
        made = dict(zip(missing, self._encode(missing), strict=True))
        with self._lock:
            for text, ids in made.items():
                self._insert(text, ids)
        return [made[text] if ids is None else ids for text, ids in zip(texts, found, strict=True)]

    def _insert(self, text: str, ids: TokenArray) -> None:
        size = _size(text, ids)
        if size > self._capacity or text in self._held:
            return
        self._held[text] = ids
        self._bytes += size
        while self._bytes > self._capacity:
            self._bytes -= _size(*self._held.popitem(last=False))


def _size(text: str, ids: TokenArray) -> int:
    # Four bytes a character bounds every form that CPython stores text in.
    return 4 * len(text) + ids.nbytes + _ENTRY_BYTES
