"""What a sequence is to the cache: its tokens, and what lies in its media, block by block.

Identity is exact: 64 token ids and the key of every media item in or before the block. Hashes only find.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ninfer.fast.ops.control import PAGE_TOKENS

Tokens = npt.NDArray[np.int32]
BlockHash = Callable[[bytes, bytes], int]


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """An image or video at ``begin..end`` of the prompt; ``digest`` of its content, kind and grid."""

    begin: int
    end: int
    digest: bytes


class Content:
    """A growing sequence. ``spans`` in order; places strictly inside one are no frontiers.

    ``axes_key`` tells apart sequences whose rotary axes are not simply 0..T − 1: b"" for text.
    """

    def __init__(self, prompt: Tokens, spans: tuple[MediaSpan, ...] = (), axes_key: bytes = b"") -> None:
        self._tokens = np.array(prompt, np.int32)
        self._length = len(prompt)
        self._spans, self._axes_key = spans, axes_key

    def __len__(self) -> int:
        return self._length

    def append(self, token: int) -> None:
        """One more committed token."""
        if self._length == len(self._tokens):
            self._grow(1)
        self._tokens[self._length] = token
        self._length += 1

    def extend(self, tokens: Sequence[int]) -> None:
        """As ``append`` of each."""
        end = self._length + len(tokens)
        if end > len(self._tokens):
            self._grow(len(tokens))
        self._tokens[self._length : end] = tokens
        self._length = end

    def _grow(self, least: int) -> None:
        more = np.empty(max(256, self._length // 2, least), np.int32)
        self._tokens = np.concatenate([self._tokens[: self._length], more])

    def tokens(self, begin: int, end: int) -> Tokens:
        """Ids of the places ``begin..end``; a view."""
        assert 0 <= begin <= end <= self._length
        return self._tokens[begin:end]

    def block(self, index: int) -> bytes:
        """The 64 ids of block ``index``."""
        return self.tokens(PAGE_TOKENS * index, PAGE_TOKENS * (index + 1)).tobytes()

    def tail(self, frontier: int) -> bytes:
        """The ids between the last block border and ``frontier``."""
        return self.tokens(frontier - frontier % PAGE_TOKENS, frontier).tobytes()

    def extra(self, index: int) -> bytes:
        """What beside its ids makes block ``index``: b"" unless media lies in or before it."""
        return self._extra(PAGE_TOKENS * (index + 1))

    def tail_extra(self, frontier: int) -> bytes:
        """As ``extra``, of the tail before ``frontier``."""
        return self._extra(frontier) if frontier % PAGE_TOKENS else b""

    def _extra(self, end: int) -> bytes:
        before = [span for span in self._spans if span.begin < end]
        if not before:
            return self._axes_key
        digest = hashlib.blake2b(self._axes_key, digest_size=16)
        for span in before:
            digest.update(span.begin.to_bytes(8, "little") + span.end.to_bytes(8, "little") + span.digest)
        return digest.digest()

    def is_frontier(self, place: int) -> bool:
        """Whether a sequence may resume here: not inside an image."""
        return not any(span.begin < place < span.end for span in self._spans)

    def frontier_at_or_before(self, place: int) -> int:
        """``place``, or the start of the image that it lies in."""
        return min([place, *(span.begin for span in self._spans if span.begin < place < span.end)])

    def shared_with(self, other: Content) -> int:
        """Places from the start that are the same in both; ends before the first unlike media item."""
        count = min(len(self), len(other))
        for mine, theirs in zip(self._spans, other._spans, strict=False):
            if mine != theirs:
                count = min(count, mine.begin, theirs.begin)
                break
        for extra in (self._spans[len(other._spans) :], other._spans[len(self._spans) :]):
            if extra:
                count = min(count, extra[0].begin)
        if self._axes_key != other._axes_key:
            return 0
        differ = np.flatnonzero(self._tokens[:count] != other._tokens[:count])
        return int(differ[0]) if len(differ) else count


def axes_key(axes: Tokens) -> bytes:
    """b"" for text, whose axes are all 0..T − 1; else a digest. ``axes`` [3, T]."""
    if (axes == np.arange(axes.shape[1], dtype=np.int32)).all():
        return b""
    return hashlib.blake2b(np.ascontiguousarray(axes).tobytes(), digest_size=16).digest()


def block_hash(tokens: bytes, extra: bytes) -> int:
    """Finds a child of a node; equality decides."""
    return hash((tokens, extra))
