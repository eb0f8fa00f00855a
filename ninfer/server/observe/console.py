"""The one writer of standard error: records that scroll, and on a terminal a few rows pinned beneath them.

Owns cursor and colour; knows nothing of what rows say. Redirected, it writes records and nothing else: no
control sequence, no row. The pinned rows stand after the last record; they are erased before the next one and
drawn again after it, so that records reach the terminal's scrollback whole and in order.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

_UP = "\x1b[{}A"
_ERASE_BELOW = "\x1b[J"
_SGR = "\x1b[{}m"
_RESET = "\x1b[0m"
# Text of foreign libraries may hold control characters; only line breaks pass.
_PRINTABLE = dict.fromkeys([*range(32), *range(127, 160)], " ") | {ord("\n"): "\n"}


@dataclass(frozen=True, slots=True)
class Row:
    """One pinned line; ``colour`` is an SGR parameter."""

    text: str
    colour: str | None = None


def is_interactive(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether ``stream`` is a terminal that can move its cursor."""
    return stream.isatty() and environ.get("TERM", "") not in ("", "dumb")


def columns_of(stream: TextIO) -> int:
    """The terminal's width now; 80 where it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


class Console:
    """Writes to ``stream``; safe to use from any thread. ``columns`` gives the terminal's width.

    Pinned rows are, from the top: the panel (``pin``), then one line of the moment (``say``).
    """

    def __init__(
        self, stream: TextIO, *, interactive: bool = False, columns: Callable[[], int] | None = None
    ) -> None:
        self._stream = stream
        self.interactive = interactive
        self._columns = columns or (lambda: columns_of(stream))
        self._lock = threading.RLock()
        self._panel: tuple[Row, ...] = ()
        self._moment: Row | None = None
        self._drawn: list[str] = []
        self._closed = False

    def record(self, text: str, colour: str | None = None) -> None:
        """One record, for good."""
        text = text.translate(_PRINTABLE)
        painted = text if colour is None or not self.interactive else _painted(text, colour)
        with self._lock:
            self._write(self._erasure() + painted + "\n" + self._drawing())

    def pin(self, rows: Sequence[Row]) -> None:
        """The panel's rows from now on."""
        with self._lock:
            if self._panel != tuple(rows):
                self._panel = tuple(rows)
                self._redraw()

    def say(self, text: str | None) -> None:
        """The line at the very bottom, on a terminal; None takes it away."""
        with self._lock:
            moment = None if text is None else Row(text)
            if self._moment != moment:
                self._moment = moment
                self._redraw()

    def resized(self) -> None:
        """The terminal has another width."""
        with self._lock:
            self._redraw()

    def close(self) -> None:
        """Leave the panel as ordinary output, the cursor below it; later records follow as plain lines."""
        with self._lock:
            if self._closed:
                return
            self._moment = None
            self._redraw()
            self._closed = True
            if self._drawn:
                self._drawn = []
                self._write("\n")

    def _redraw(self) -> None:
        if self.interactive and not self._closed:
            self._write(self._erasure() + self._drawing())

    def _erasure(self) -> str:
        """Back to where the pinned rows begin, nothing below."""
        if not self._drawn:
            return ""
        # A terminal that has become narrower has wrapped what was drawn.
        columns = max(self._columns(), 1)
        lines = sum(max(1, -(-len(row) // columns)) for row in self._drawn)
        up = _UP.format(lines - 1) if lines > 1 else ""
        return "\r" + up + _ERASE_BELOW

    def _drawing(self) -> str:
        """The pinned rows, cut at the terminal's edge; the cursor stays at the end of the last."""
        if not self.interactive or self._closed:
            self._drawn = []
            return ""
        columns = max(self._columns(), 1)
        rows = [*self._panel, *([] if self._moment is None else [self._moment])]
        self._drawn = [row.text[:columns] for row in rows]
        return "\n".join(
            cut if row.colour is None else _painted(cut, row.colour)
            for cut, row in zip(self._drawn, rows, strict=True)
        )

    def _write(self, text: str) -> None:
        if text:
            self._stream.write(text)
            self._stream.flush()


def _painted(text: str, colour: str) -> str:
    return _SGR.format(colour) + text + _RESET


class ConsoleHandler(logging.Handler):
    """Log records as console records; those with ``statistics`` are coloured where colours are on."""

    def __init__(self, console: Console, colours: bool = False) -> None:
        super().__init__()
        self._console = console
        self._colours = colours

    def emit(self, record: logging.LogRecord) -> None:
        try:
            statistics = self._colours and getattr(record, "statistics", False)
            self._console.record(self.format(record), "36" if statistics else None)
        except Exception:
            self.handleError(record)
