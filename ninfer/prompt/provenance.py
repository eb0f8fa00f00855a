"""Text that remembers which of its characters a chat template wrote.

Owns the string type only. Input text is plain ``str``; what a template wrote is ``Traced``, and joining the
two keeps the template's spans. The text itself is always verbatim, so templates see and test exactly what a
message holds. An operation not carried out here gives plain ``str``: what loses its origin counts as input,
so a mistake can turn a control token into text, never text into a control token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex

Spans = tuple[tuple[int, int], ...]


class Traced(str):
    """Text with ``spans``: ordered, disjoint (start, stop) ranges that came from the template."""

    __slots__ = ("spans",)
    spans: Spans

    def __new__(cls, text: str = "", spans: Spans = ()) -> Traced:
        self = super().__new__(cls, text)
        self.spans = spans
        return self

    def __str__(self) -> str:
        return self  # str() of a traced text keeps its origin

    def __add__(self, other: Any) -> str:
        return join((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> str:
        return join((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> str:
        text = str.__mul__(self, count)
        if self.spans == ((0, len(self)),):
            return template_text(text)
        return join([self] * count.__index__())

    __rmul__ = __mul__

    def __getitem__(self, key: Any) -> str:
        if not isinstance(key, slice):
            key = range(len(self))[key]
            return self._cut(key, key + 1)
        start, stop, step = key.indices(len(self))
        return self._cut(start, max(start, stop)) if step == 1 else str.__getitem__(self, key)

    def __iter__(self) -> Iterator[str]:
        return (self._cut(index, index + 1) for index in range(len(self)))

    def strip(self, chars: str | None = None, /) -> str:
        """As ``str.strip``."""
        start = len(self) - len(str.lstrip(self, chars))
        return self._cut(start, max(start, len(str.rstrip(self, chars))))

    def lstrip(self, chars: str | None = None, /) -> str:
        """As ``str.lstrip``."""
        return self._cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> str:
        """As ``str.rstrip``."""
        return self._cut(0, len(str.rstrip(self, chars)))

    def removeprefix(self, prefix: str, /) -> str:
        """As ``str.removeprefix``."""
        return self._cut(len(prefix) if self.startswith(prefix) else 0, len(self))

    def removesuffix(self, suffix: str, /) -> str:
        """As ``str.removesuffix``."""
        return self._cut(0, len(str.removesuffix(self, suffix)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """As ``str.split``."""
        return self._locate(str.split(self, sep, maxsplit), 0 if sep is None else len(sep))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """As ``str.rsplit``."""
        return self._locate(str.rsplit(self, sep, maxsplit), 0 if sep is None else len(sep))

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        """As ``str.partition``."""
        return _three(self._locate(str.partition(self, sep), 0))

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        """As ``str.rpartition``."""
        return _three(self._locate(str.rpartition(self, sep), 0))

    def splitlines(self, keepends: bool = False) -> list[str]:
        """As ``str.splitlines``."""
        whole = self._locate(str.splitlines(self, keepends=True), 0)
        bare = str.splitlines(self, keepends)
        return [line[: len(wanted)] for line, wanted in zip(whole, bare, strict=True)]

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        """As ``str.replace``; ``new`` keeps its own origin."""
        if not old:
            return str.replace(self, old, new, count)  # a text between all characters writes no control token
        return interleave(new, self.split(old, count))

    def join(self, iterable: Iterable[str], /) -> str:
        """As ``str.join``."""
        return interleave(self, list(iterable))

    def _cut(self, start: int, stop: int) -> str:
        text = str.__getitem__(self, slice(start, stop))
        kept = tuple(
            (max(left, start) - start, min(right, stop) - start)
            for left, right in self.spans
            if left < stop and right > start
        )
        return Traced(text, kept) if kept else text

    def _locate(self, pieces: Sequence[str], gap: int) -> list[str]:
        """Give consecutive pieces their spans; ``gap`` characters (0: white space or none) part them."""
        located = []
        at = 0
        for piece in pieces:
            at = str.index(self, piece, at)
            located.append(self._cut(at, at + len(piece)))
            at += len(piece) + gap
        return located


def template_text(text: str) -> str:
    """Text that is wholly a template's own."""
    return Traced(text, ((0, len(text)),)) if text else ""


def join(parts: Iterable[str]) -> str:
    """``"".join(parts)`` with every part's origin kept."""
    pieces = list(parts)
    text = "".join(pieces)
    if Traced not in map(type, pieces):
        return text
    spans: list[tuple[int, int]] = []
    at = 0
    for piece in pieces:
        if isinstance(piece, Traced):
            for start, stop in piece.spans:
                if spans and spans[-1][1] == at + start:
                    spans[-1] = (spans[-1][0], at + stop)
                else:
                    spans.append((at + start, at + stop))
        at += len(piece)
    return Traced(text, tuple(spans)) if spans else text


def interleave(separator: str, pieces: Sequence[str]) -> str:
    """``separator.join(pieces)`` with every origin kept."""
    parts: list[str] = []
    for piece in pieces:
        parts += (separator, piece)
    return join(parts[1:])


def regions(text: str) -> Iterator[tuple[bool, str]]:
    """Nonempty stretches of ``text`` in order, each with whether the template wrote it."""
    at = 0
    for start, stop in text.spans if isinstance(text, Traced) else ():
        if start > at:
            yield False, str.__getitem__(text, slice(at, start))
        yield True, str.__getitem__(text, slice(start, stop))
        at = stop
    if at < len(text):
        yield False, str.__getitem__(text, slice(at, len(text)))


def _three(parts: list[str]) -> tuple[str, str, str]:
    first, second, third = parts
    return first, second, third
