"""How far a conversion is, on a terminal or in a log.

Owns one line of output; the clock and the stream come in as arguments. A terminal gets a bar that is
redrawn at most ten times a second; anything else gets one plain line per tenth of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

_BAR = 30
_REDRAW_S = 0.1
_MIB = 1 << 20


class Progress:
    """Call it with (bytes done, bytes in all); it decides what is worth printing."""

    def __init__(self, stream: TextIO, clock: Callable[[], float], label: str = "writing") -> None:
        self._stream = stream
        self._clock = clock
        self._label = label
        self._started = clock()
        self._drawn = float("-inf")
        self._tenth = -1
        self._is_terminal = stream.isatty()

    def __call__(self, done: int, total: int) -> None:
        if self._is_terminal:
            self._draw(done, total)
        else:
            self._log(done, total)

    def _draw(self, done: int, total: int) -> None:
        now = self._clock()
        if done < total and now - self._drawn < _REDRAW_S:
            return
        self._drawn = now
        filled = _BAR * done // max(total, 1)
        end = "\n" if done >= total else ""
        self._stream.write(f"\r[{'#' * filled}{'.' * (_BAR - filled)}] {self._text(done, total)}\x1b[K{end}")
        self._stream.flush()

    def _log(self, done: int, total: int) -> None:
        tenth = 10 * done // max(total, 1)
        if tenth == self._tenth:
            return
        self._tenth = tenth
        self._stream.write(f"{self._text(done, total)}\n")
        self._stream.flush()

    def _text(self, done: int, total: int) -> str:
        seconds = max(self._clock() - self._started, 1e-9)
        rate = done / _MIB / seconds
        return f"{self._label} {done / _MIB:.0f} of {total / _MIB:.0f} MiB, {seconds:.0f} s, {rate:.0f} MiB/s"
