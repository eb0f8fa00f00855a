"""Splits running text into reasoning and content.

Owns where reasoning ends and which line breaks are framing. Source: ``spec/output.yaml`` ``thinking``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ninfer import spec
from ninfer.prompt.prepared import Channel

ChannelText = tuple[Channel, str]


class ThinkingSplitter:
    """``channel`` is where the next text belongs; ``quoted_closes`` counts closes that closed nothing."""

    def __init__(self, initial: Channel) -> None:
        rules = spec.document("output")["thinking"]
        self.channel: Channel = initial
        self._close: str = rules["close"]
        self._breaks = "".join(rules["line_breaks"])
        self._framing: int = rules["framing_line_breaks"]
        self._notable = re.compile(f"[{re.escape(self._breaks + self._close[0])}]")
        self.quoted_closes = 0
        self._held_breaks = ""
        self._held_close = 0  # characters of the closing text at the end
        self._after_close = False

    def copy(self) -> ThinkingSplitter:
        """An independent splitter in the same state."""
        twin = object.__new__(ThinkingSplitter)
        twin.__dict__.update(self.__dict__)
        return twin

    @property
    def closing(self) -> bool:
        """Whether the closing text is complete and what follows will decide about it."""
        return self._held_close == len(self._close)

    def feed(self, text: str) -> Iterator[ChannelText]:
        """Add text; yields what is decided. The caller may stop anywhere if it then drops the splitter."""
        at = 0
        while at < len(text) and self.channel == "reasoning":
            if self._held_close or self._held_breaks:
                decided, used = self._continue_held(text[at])
                at += used
            else:
                decided, at = self._find_notable(text, at)
            if decided:
                yield "reasoning", decided
        if self.channel == "content":
            rest = text[at:]
            if self._after_close:
                rest = rest.lstrip(self._breaks)
                self._after_close = not rest
            if rest:
                yield "content", rest

    def finish(self) -> str:
        """The turn ends here: a complete closing text closes; anything less is reasoning, returned."""
        rest = "" if self.closing else self._held_breaks + self._close[: self._held_close]
        if self.closing:
            self.channel = "content"
        self._release()
        return rest

    def _find_notable(self, text: str, at: int) -> tuple[str, int]:
        found = self._notable.search(text, at)
        if found is None:
            return text[at:], len(text)
        self._hold(found.group())
        return text[at : found.start()], found.end()

    def _continue_held(self, character: str) -> tuple[str, int]:
        """What one more character decides, and whether it was used up."""
        if self.closing:
            if character in self._breaks:
                self.channel, self._after_close = "content", True
                self._release()
                return "", 0
            self.quoted_closes += 1
        elif self._held_close == 0 and character in self._breaks:
            return self._hold(character), 1
        elif character == self._close[self._held_close]:
            self._held_close += 1
            return "", 1
        # The closing text holds its first character only once: no later beginning can be inside what is held.
        return self._release(), 0

    def _hold(self, character: str) -> str:
        if character not in self._breaks:
            self._held_close = 1
            return ""
        self._held_breaks += character
        surplus = len(self._held_breaks) - self._framing
        released, self._held_breaks = (
            self._held_breaks[: max(surplus, 0)],
            self._held_breaks[max(surplus, 0) :],
        )
        return released

    def _release(self) -> str:
        held = self._held_breaks + self._close[: self._held_close]
        self._held_breaks, self._held_close = "", 0
        return held
