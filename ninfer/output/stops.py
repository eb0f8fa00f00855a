"""Stop strings in running text: what may be published, and where a stop ends it.

Owns the matching of one channel's text. Every stop string has its Knuth–Morris–Pratt automaton, so a
character costs amortised constant time and the held text is always the beginning of a stop string.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopPattern:
    """One stop string; ``borders[n]`` is the longest proper border of its first n characters."""

    text: str
    borders: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> StopPattern:
        """Errors: ``ValueError`` for the empty string, which would match everywhere."""
        if not text:
            raise ValueError("a stop string must not be empty")
        borders = [0, 0]
        length = 0
        for character in text[1:]:
            while length and text[length] != character:
                length = borders[length]
            length += text[length] == character
            borders.append(length)
        return cls(text, tuple(borders))

    def step(self, matched: int, character: str) -> int:
        """How many characters of the stop are matched after one more character."""
        while matched and self.text[matched] != character:
            matched = self.borders[matched]
        return matched + (self.text[matched] == character)


class StopMatcher:
    """Holds back what may be the beginning of a stop string; ``matched`` is the one that ended the text."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None
        self._patterns = tuple(StopPattern.of(stop) for stop in stops)
        self._progress = [0] * len(self._patterns)
        firsts = "".join(sorted({stop[0] for stop in stops}))
        self._first = re.compile(f"[{re.escape(firsts)}]") if firsts else None

    def copy(self) -> StopMatcher:
        """An independent matcher in the same state."""
        twin = object.__new__(StopMatcher)
        twin.matched = self.matched
        twin._patterns = self._patterns
        twin._progress = self._progress[:]
        twin._first = self._first
        return twin

    @property
    def held(self) -> str:
        """Text that is neither published nor dropped: the longest beginning of a stop at the end."""
        stop, count = self._holding()
        return stop[:count]

    def passes(self, text: str) -> bool:
        """Whether ``feed`` would return just this: nothing is held and no stop begins in it."""
        if self._first is None:
            return True
        return self.matched is None and not any(self._progress) and self._first.search(text) is None

    def feed(self, text: str) -> str:
        """Add text; returns what can be published. After a match the text ends before the stop."""
        if self._first is None:
            return text
        beginning, held = self._holding()
        at = 0
        while at < len(text):
            if not any(self._progress):
                start = self._first.search(text, at)
                if start is None:
                    break
                at = start.start()
            stop = self._advance(text[at])
            at += 1
            if stop is not None:
                self.matched = stop
                return _first_of(beginning, held, text, held + at - len(stop))
        return _first_of(beginning, held, text, held + len(text) - self._holding()[1])

    def flush(self) -> str:
        """End the text: what was held is published after all."""
        held = "" if self.matched is not None else self.held
        self._progress = [0] * len(self._patterns)
        return held

    def _holding(self) -> tuple[str, int]:
        """A stop and how many of its characters the text ends with, the most of all."""
        if not self._patterns:
            return "", 0
        count = max(self._progress)
        return self._patterns[self._progress.index(count)].text, count

    def _advance(self, character: str) -> str | None:
        found: str | None = None
        for index, pattern in enumerate(self._patterns):
            matched = pattern.step(self._progress[index], character)
            if matched == len(pattern.text):
                if found is None or matched > len(found):
                    found = pattern.text
                matched = pattern.borders[matched]
            self._progress[index] = matched
        return found


def _first_of(beginning: str, held: int, text: str, count: int) -> str:
    """The first ``count`` of ``beginning[:held] + text``, without building more than that."""
    return beginning[:count] if count <= held else beginning[:held] + text[: count - held]
