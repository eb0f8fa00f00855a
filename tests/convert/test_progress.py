"""One line of progress, for a terminal and for a log."""

from __future__ import annotations

import io
from collections.abc import Callable

from ninfer.convert.progress import Progress

MIB = 1 << 20


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def clock(step: float) -> Callable[[], float]:
    """A clock that goes on by ``step`` at each look."""
    now = [0.0]

    def look() -> float:
        now[0] += step
        return now[0]

    return look


def test_a_log_gets_one_line_per_tenth_and_the_end() -> None:
    stream = io.StringIO()
    progress = Progress(stream, clock(0.001))
    for done in range(1001):
        progress(done * MIB, 1000 * MIB)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[0].startswith("writing 0 of 1000 MiB")
    assert lines[-1].startswith("writing 1000 of 1000 MiB")
    assert "\r" not in stream.getvalue()


def test_a_terminal_gets_a_bar_redrawn_ten_times_a_second() -> None:
    stream = Terminal()
    progress = Progress(stream, clock(0.005))
    for done in range(1001):
        progress(done * MIB, 1000 * MIB)
    drawn = stream.getvalue().split("\r")[1:]
    assert drawn[0].startswith("[" + "." * 30 + "] writing 0 of 1000 MiB")
    assert drawn[-1].startswith("[" + "#" * 30 + "] writing 1000 of 1000 MiB")
    assert drawn[-1].endswith("\n")
    assert 40 <= len(drawn) <= 120


def test_an_empty_job_is_done_at_once() -> None:
    stream = Terminal()
    Progress(stream, clock(1))(0, 0)
    assert stream.getvalue().endswith("\n")
