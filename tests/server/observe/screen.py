"""A terminal small enough to trust: lines, scrollback, and the few control sequences a console may use.

Any other sequence fails the test.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\x1b\[(?P<args>[0-9;]*)(?P<final>[A-Za-z])|(?P<char>.)", re.S)


class Screen:
    """``feed`` what a program writes; ``lines`` is the whole scrollback and screen, right-trimmed."""

    def __init__(self, columns: int = 200, rows: int = 30) -> None:
        self.columns, self.rows = columns, rows
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0
        self.colours: set[str] = set()
        self.rewritten: list[str] = []
        self._partial = ""

    def feed(self, text: str) -> None:
        text = self._partial + text
        cut = text.rfind("\x1b")
        if cut >= 0 and not re.match(r"\x1b\[[0-9;]*[A-Za-z]", text[cut:]):
            text, self._partial = text[:cut], text[cut:]
        else:
            self._partial = ""
        for token in _TOKEN.finditer(text):
            if token["char"] is not None:
                self._put(token["char"])
            else:
                self._control(token["args"], token["final"])

    def _put(self, char: str) -> None:
        if char == "\n":
            self._column = 0
            self._down()
        elif char == "\r":
            self._column = 0
        else:
            assert char.isprintable(), repr(char)
            if self._column == self.columns:
                self._column = 0
                self._down()
            line = self._lines[self._row]
            line += [" "] * (self._column + 1 - len(line))
            line[self._column] = char
            self._column += 1

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._lines):
            self._lines.append([])

    def _control(self, args: str, final: str) -> None:
        if final == "A":
            self._row -= int(args or 1)
            assert self._row >= self.top, "the cursor went above the screen"
        elif final == "J":
            assert args in ("", "0")
            self.rewritten.append("\n".join(self.lines[self._row :]))
            del self._lines[self._row + 1 :]
            del self._lines[self._row][self._column :]
        elif final == "m":
            self.colours.add(args)
        else:
            raise AssertionError(f"unknown sequence CSI {args}{final}")

    @property
    def top(self) -> int:
        """The first line on the screen; those above are scrollback and out of reach."""
        return max(0, len(self._lines) - self.rows)

    @property
    def lines(self) -> list[str]:
        return ["".join(line).rstrip() for line in self._lines]

    @property
    def cursor(self) -> tuple[int, int]:
        return self._row, self._column
