"""Thinking budgets in the turn that both engines share: when a close is forced, and that it comes whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.events import Delta
from ninfer.engine.requests import ThinkingBudget
from ninfer.engine.turn import Turn
from ninfer.output import OutputSession
from tests.engine.requests import generation

TEXTS = [b"a", b"b ", b"st", b"op", b"\n", b"</think>", b"\n\n", b"Stop", b".", b"\xe2\x82", b"<end>"]
A, B, ST, OP, BREAK, CLOSE, BREAKS, GUIDE, DOT, HALF, END = range(len(TEXTS))
CLOSING = (GUIDE, DOT, BREAK, CLOSE, BREAKS)


def turn_of(budget: int, room: int = 99, stops: tuple[str, ...] = (), channel: str = "reasoning") -> Turn:
    request = generation(
        "1",
        initial_channel=channel,
        stops=stops,
        stop_token_ids=(END,),
        thinking_budget=ThinkingBudget(budget, CLOSING),
    )
    return Turn(request, TEXTS.__getitem__, 3, room, len(TEXTS))


def play(turn: Turn, drawn: list[int]) -> tuple[list[int], dict[str, str]]:
    """What is committed and published when the model would draw these."""
    committed, deltas = list[int](), list[Delta]()
    for token in drawn:
        if turn.reason is not None:
            break
        committed.append(token if turn.forced is None else turn.forced)
        deltas += turn.commit(committed[-1])
    deltas += turn.close()
    text = {"reasoning": "", "content": ""}
    for delta in deltas:
        text[delta.channel] += delta.text
    return committed, text


def test_thinking_is_closed_at_its_budget() -> None:
    turn = turn_of(3)
    committed, text = play(turn, [A, B, A, B, B, B, B, B, A, A])
    assert committed == [A, B, A, *CLOSING, A, A]
    assert text == {"reasoning": "ab aStop.", "content": "aa"}
    assert turn.reasoning_tokens == 3 + 4


def test_forced_ids_count_in_penalties() -> None:
    turn = turn_of(1)
    play(turn, [A] * 7)
    assert np.array_equal(turn.counts, np.bincount([A, *CLOSING, A], minlength=len(TEXTS)))


@pytest.mark.clause("THINK-007")
@pytest.mark.parametrize(
    ("drawn", "text"),
    [
        ([A, A, CLOSE, BREAKS, B], {"reasoning": "aa", "content": "b "}),  # closes exactly at the budget
        ([A, CLOSE, BREAKS, B], {"reasoning": "a", "content": "b "}),  # just before it
        ([A, A, END], {"reasoning": "aa", "content": ""}),
    ],
)
def test_a_natural_end_at_the_budget_goes_first(drawn: list[int], text: dict[str, str]) -> None:
    assert play(turn_of(3), drawn) == (drawn, text)


def test_a_quoted_close_at_the_budget_leaves_thinking_open() -> None:
    committed, text = play(turn_of(3), [A, A, CLOSE, B, *[A] * 6])
    assert committed == [A, A, CLOSE, B, *CLOSING, A]
    assert text == {"reasoning": "aa</think>b Stop.", "content": "a"}


@pytest.mark.clause("THINK-007")
def test_a_stop_at_the_budget_goes_first() -> None:
    turn = turn_of(2, stops=("stop",))
    assert play(turn, [ST, OP, A]) == ([ST, OP], {"reasoning": "", "content": ""})
    assert turn.stop_string == "stop"


def test_a_stop_string_is_not_looked_for_in_the_close() -> None:
    turn = turn_of(2, stops=("Stop.", "stSt", "S"))
    committed, text = play(turn, [A, ST, *[B] * 6])
    assert committed == [A, ST, *CLOSING, B]
    assert text == {"reasoning": "astStop.", "content": "b "}
    assert turn.stop_string is None


def test_answers_without_thinking_are_never_closed() -> None:
    assert play(turn_of(1, channel="content"), [A] * 9)[0] == [A] * 9


@pytest.mark.parametrize(("room", "closed"), [(3 + 5, False), (3 + 5 + 1, True)])
def test_a_close_needs_room_for_one_more(room: int, closed: bool) -> None:
    turn = turn_of(3, room)
    committed, _ = play(turn, [A] * 20)
    assert committed == ([A, A, A, *CLOSING, A] if closed else [A] * room)
    assert turn.reason == "length"


@pytest.mark.clause("THINK-014")
@given(
    drawn=st.lists(st.integers(0, END), max_size=30),
    budget=st.integers(1, 12),
    room=st.integers(1, 30),
    stops=st.sampled_from([(), ("stop",), ("Stop", "."), ("ab",)]),
)
def test_the_close_is_whole_or_absent(
    drawn: list[int], budget: int, room: int, stops: tuple[str, ...]
) -> None:
    """Against the answer without a budget: equal up to the first place where thinking is open behind it."""
    turn = turn_of(budget, room, stops)
    committed, text = play(turn, drawn)
    session, at = OutputSession(TEXTS.__getitem__, "reasoning", stops), None
    free, _ = play(turn_of(99, room, stops), drawn)
    for count, token in enumerate(free, 1):
        stopped = token == END or session.push([token]).stop_string is not None
        open_ = session.channel == "reasoning" and not session.closing
        if count >= budget and open_ and not stopped and count + len(CLOSING) < room:
            at = count
            break
    if at is None:
        assert committed == free
        return
    assert committed[:at] == free[:at]
    inserted = committed[at : at + len(CLOSING)]
    assert inserted == list(CLOSING[: len(inserted)])
    if len(drawn) >= at + len(CLOSING):
        assert len(inserted) == len(CLOSING)
        assert text["reasoning"].endswith("Stop.")


def test_deltas_say_when_their_tokens_came() -> None:
    turn = Turn(generation("1"), TEXTS.__getitem__, 3, 9, len(TEXTS))
    turn.begin(10.0)
    deltas = [*turn.commit(A, 10.5), *turn.commit(HALF, 11.0), *turn.commit(A, 12.0)]
    assert [(d.committed, d.prompt_s, d.decode_s) for d in deltas] == [(1, 0.5, 0.0), (3, 0.5, 1.5)]
