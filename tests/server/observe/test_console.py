"""The console: records above, pinned rows beneath, and nothing but records where there is no terminal."""

from __future__ import annotations

import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.server.observe.console import Console, ConsoleHandler, Row, is_interactive
from tests.server.observe.screen import Screen

PANEL = [Row("title " + "=" * 60), Row("header"), Row("all 1 2 3")]


class Terminal(io.StringIO):
    """A stream that is a terminal, with the screen that shows it."""

    def __init__(self, columns: int = 200, rows: int = 30) -> None:
        super().__init__()
        self.screen = Screen(columns, rows)
        self.written = ""

    def write(self, text: str) -> int:
        self.written += text
        self.screen.feed(text)
        return len(text)

    def isatty(self) -> bool:
        return True


def on(terminal: Terminal) -> Console:
    return Console(terminal, interactive=True, columns=lambda: terminal.screen.columns)


def test_records_scroll_above_the_panel() -> None:
    terminal = Terminal(rows=10)
    console = on(terminal)
    console.pin(PANEL)
    for number in range(100):
        console.record(f"record {number}")
        assert terminal.screen.lines[-3:] == [row.text for row in PANEL]
    assert terminal.screen.lines[:-3] == [f"record {number}" for number in range(100)]


def test_the_moments_line_stands_below_the_panel_and_goes_again() -> None:
    terminal = Terminal()
    console = on(terminal)
    console.pin(PANEL)
    console.say("Press Ctrl+C again")
    assert terminal.screen.lines == [*(row.text for row in PANEL), "Press Ctrl+C again"]
    console.record("r")
    assert terminal.screen.lines == ["r", *(row.text for row in PANEL), "Press Ctrl+C again"]
    console.say(None)
    assert terminal.screen.lines == ["r", *(row.text for row in PANEL)]


def test_the_end_leaves_the_panel_and_the_cursor_below() -> None:
    terminal = Terminal()
    console = on(terminal)
    console.pin(PANEL)
    console.say("moment")
    console.close()
    console.close()
    assert terminal.screen.lines == [*(row.text for row in PANEL), ""]
    assert terminal.screen.cursor == (3, 0)
    console.record("late")
    console.pin([Row("never")])
    assert terminal.screen.lines[3:] == ["late", ""]


def test_a_narrow_window_cuts_rows_and_a_wider_one_shows_them_again() -> None:
    terminal = Terminal(columns=40)
    console = on(terminal)
    console.pin(PANEL)
    console.record("r")
    shown = terminal.screen.lines
    assert shown == ["r", PANEL[0].text[:40], "header", "all 1 2 3"]
    terminal.screen.columns = 100
    console.resized()
    assert terminal.screen.lines == ["r", *(row.text for row in PANEL)]


def test_rows_that_did_not_change_are_not_written_again() -> None:
    terminal = Terminal()
    console = on(terminal)
    console.pin(PANEL)
    before = terminal.written
    console.pin(list(PANEL))
    console.say(None)
    assert terminal.written == before


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("record"), st.text("abc \n", min_size=1, max_size=30)),
            st.tuples(st.just("pin"), st.lists(st.text("xyz", min_size=1, max_size=90), max_size=4)),
            st.tuples(st.just("say"), st.none() | st.text("m", min_size=1, max_size=50)),
        ),
        max_size=30,
    )
)
def test_whatever_happens_the_screen_is_records_then_rows(actions: list[tuple[str, object]]) -> None:
    terminal = Terminal(columns=60, rows=12)
    console = on(terminal)
    records: list[str] = []
    rows: list[str] = []
    moment: str | None = None
    for kind, value in actions:
        if kind == "record":
            console.record(str(value))
            records += str(value).split("\n")
        elif kind == "pin":
            assert isinstance(value, list)
            rows = value
            console.pin([Row(text) for text in rows])
        else:
            moment = None if value is None else str(value)
            console.say(moment)
    pinned = [text[:60] for text in (*rows, *([] if moment is None else [moment]))]
    expected = [record.rstrip() for record in records] + (pinned or [""])
    assert terminal.screen.lines == expected


@pytest.mark.parametrize("colours", [False, True])
def test_a_stream_that_is_no_terminal_gets_records_only(colours: bool) -> None:
    stream = io.StringIO()
    console = Console(stream, interactive=is_interactive(stream, {"TERM": "xterm"}))
    handler = ConsoleHandler(console, colours)
    console.pin([Row("panel", "36")])
    console.say("moment")
    handler.emit(logging.makeLogRecord({"msg": "statistics", "statistics": True}))
    console.resized()
    console.close()
    assert stream.getvalue() == "statistics\n"


def test_colour_marks_statistics_only_where_it_is_on() -> None:
    for colours, expected in ((True, {"36", "0"}), (False, set())):
        terminal = Terminal()
        handler = ConsoleHandler(on(terminal), colours)
        handler.emit(logging.makeLogRecord({"msg": "plain"}))
        assert terminal.screen.colours == set()
        handler.emit(logging.makeLogRecord({"msg": "rates", "statistics": True}))
        assert terminal.screen.colours == expected


def test_control_characters_of_a_message_do_not_reach_the_terminal() -> None:
    terminal = Terminal()
    on(terminal).record("a\x1b[2Jb\rc\x9bd")
    assert terminal.screen.lines[0] == "a [2Jb c d"


def test_which_streams_are_terminals() -> None:
    terminal = Terminal()
    assert is_interactive(terminal, {"TERM": "xterm-256color"})
    assert not is_interactive(terminal, {"TERM": "dumb"})
    assert not is_interactive(terminal, {})
    assert not is_interactive(io.StringIO(), {"TERM": "xterm"})
