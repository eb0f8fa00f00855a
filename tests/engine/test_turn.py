"""The turn that both engines share, against a naive reading of a whole answer, over drawn tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.events import Delta
from ninfer.engine.turn import Turn
from ninfer.output import OutputSession
from tests.engine.requests import generation

# Half characters, a close of thinking in pieces, pieces of stop strings, an id without text.
TEXT = [
    b"a",
    b"b",
    b"ab",
    b"stop",
    b"st",
    b"op",
    b"\xe2\x82",
    b"\xac",
    b"</thi",
    b"nk>",
    b"\n\n",
    b"",
    b"\xff",
]
STOP_ID = len(TEXT)
TEXTS = [*TEXT, b"<end>"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an answer came to."""

    reason: str | None
    stop_string: str | None
    committed: int
    published: tuple[int, ...]
    text: dict[str, str]


def outcome(turn: Turn, deltas: list[Delta]) -> Outcome:
    text = {"reasoning": "", "content": ""}
    for delta in deltas:
        text[delta.channel] += delta.text
    ids = tuple(token for delta in deltas for token in delta.token_ids)
    return Outcome(turn.reason, turn.stop_string, turn.committed, ids, text)


def naive(tokens: list[int], room: int, stops: tuple[str, ...], channel: str, ignore: bool) -> Outcome:
    """Find the end by trying every length, then read the whole answer at once."""

    def read(ids: list[int]) -> tuple[OutputSession, dict[str, str], str | None]:
        session, text = OutputSession(TEXTS.__getitem__, channel, stops), {"reasoning": "", "content": ""}
        step = session.push(ids)
        for place, piece in [*step.deltas, *(() if step.stop_string else session.finish())]:
            text[place] += piece
        return session, text, step.stop_string

    for length in range(len(tokens) + 1):
        ids = tokens[:length]
        stopped_by_id = bool(ids) and ids[-1] == STOP_ID and not ignore
        shown = ids[:-1] if stopped_by_id else ids
        _, text, stop = read(shown)
        if stop is not None:
            return Outcome("stop", stop, length, tuple(shown), text)
        if stopped_by_id:
            return Outcome("stop", None, length, tuple(shown), text)
        if length == room:
            return Outcome("length", None, length, tuple(shown), text)
    return Outcome(None, None, len(tokens), tuple(tokens), read(tokens)[1])


@given(
    tokens=st.lists(st.integers(0, STOP_ID), max_size=40),
    room=st.integers(0, 40),
    stops=st.lists(st.sampled_from(["stop", "ab", "€", "bs", "a\n\n"]), max_size=3, unique=True).map(tuple),
    channel=st.sampled_from(["reasoning", "content"]),
    ignore=st.booleans(),
)
def test_a_turn_ends_and_publishes_as_the_whole_answer_reads(
    tokens: list[int], room: int, stops: tuple[str, ...], channel: str, ignore: bool
) -> None:
    request = generation(
        "1", stops=stops, initial_channel=channel, stop_token_ids=(STOP_ID,), ignore_stop_tokens=ignore
    )
    turn, deltas = Turn(request, TEXTS.__getitem__, 3, room, len(TEXTS)), list[Delta]()
    for token in tokens:
        if turn.reason is not None:
            break
        deltas += turn.commit(token)
    assert np.array_equal(turn.counts, np.bincount(tokens[: turn.committed], minlength=len(TEXTS)))
    ended = turn.reason is not None
    deltas += turn.close()
    found = outcome(turn, deltas)
    assert found == naive(tokens, room, stops, channel, ignore)
    assert ended == (found.reason is not None)
    # No event is empty, and every committed id but a stop id was told exactly once, in order.
    assert all(delta.text or delta.token_ids for delta in deltas)


@given(st.lists(st.integers(0, STOP_ID - 1), max_size=20), st.integers(0, 20))
def test_a_cancelled_turn_tells_everything_it_committed(tokens: list[int], at: int) -> None:
    turn, deltas = Turn(generation("1"), TEXTS.__getitem__, 3, 99, len(TEXTS)), list[Delta]()
    for token in tokens[:at]:
        deltas += turn.commit(token)
    turn.cancel()
    deltas += turn.close()
    found = outcome(turn, deltas)
    assert (found.reason, found.published) == ("cancelled", tuple(tokens[:at]))
    assert found.text["content"] == b"".join(TEXTS[t] for t in tokens[:at]).decode(errors="replace")


def test_a_run_of_text_is_one_delta_and_every_token_is_told_in_it() -> None:
    turn = Turn(generation("1"), TEXTS.__getitem__, 3, 99, len(TEXTS))
    tokens, deltas = turn.commit_text([0, 1, 2, 6], 1.0)
    assert tokens == [0, 1, 2, 6]
    assert [(delta.text, delta.token_ids, delta.committed) for delta in deltas] == [("abab", (0, 1, 2), 3)]
    tokens, deltas = turn.commit_text([7, 0, STOP_ID], 2.0)
    assert [(delta.text, delta.token_ids, delta.committed) for delta in deltas] == [
        ("€a<end>", (6, 7, 0, STOP_ID), 7)
    ]


def test_what_is_more_than_text_is_left_to_single_commits() -> None:
    request = generation("1", stops=("stop",), stop_token_ids=(STOP_ID,))
    turn = Turn(request, TEXTS.__getitem__, 3, 5, len(TEXTS))
    assert turn.commit_text([0, STOP_ID, 1], 1.0)[0] == [0], "up to a stop id"
    assert turn.commit_text([0, 4], 1.0) == ([], []), "a stop string may begin in it"
    assert turn.commit_text([0] * 9, 1.0)[0] == [0] * 4, "as far as there is room"
    assert turn.reason == "length"
    thinking = Turn(generation("2", initial_channel="reasoning"), TEXTS.__getitem__, 3, 9, len(TEXTS))
    assert thinking.commit_text([0, 1], 1.0) == ([], [])
