"""Calls and results of earlier turns, whatever protocol they came by."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.errors import RequestError
from ninfer.prompt.conversation import Message, ToolCall
from ninfer.server.members import Members
from ninfer.server.tools import HistoryEntry, paired


def turn(number: int, keys: list[str]) -> HistoryEntry:
    calls = tuple(ToolCall("f", {}, key) for key in keys)
    where = Members({}, f"messages[{number}]")
    paths = tuple((key, f"messages[{number}].tool_calls[{i}].id") for i, key in enumerate(keys))
    return HistoryEntry(Message("assistant", tool_calls=calls), where, calls=paths)


def result(key: str) -> HistoryEntry:
    where = Members({"tool_call_id": key}, "messages[9]")
    return HistoryEntry(Message("tool", tool_call_id=key), where, answers=key, answers_at="tool_call_id")


USER = HistoryEntry(Message("user"), Members({}, "messages[0]"))


@given(st.lists(st.sets(st.sampled_from("abcdef"), min_size=1).map(sorted), max_size=4), st.randoms())
def test_results_of_every_turn_come_in_the_order_of_its_calls(turns: list[list[str]], rng: object) -> None:
    entries = [USER]
    for number, keys in enumerate(turns, 1):
        shuffled = list(keys)
        rng.shuffle(shuffled)  # type: ignore[attr-defined]
        entries += [turn(number, keys), *map(result, shuffled)]
    entries.append(USER)
    answered = [message.tool_call_id for message in paired(entries) if message.role == "tool"]
    assert answered == list(itertools.chain(*turns))


@given(st.lists(st.sampled_from("abc"), max_size=4))
def test_anything_but_one_result_for_each_call_is_refused(answers: list[str]) -> None:
    entries = [USER, turn(1, ["a", "b"]), *map(result, answers), USER]
    if sorted(answers) == ["a", "b"]:
        assert len(paired(entries)) == 5
        return
    with pytest.raises(RequestError) as caught:
        paired(entries)
    assert caught.value.code == "invalid_tool_history"
    assert caught.value.param is not None
    assert caught.value.param in caught.value.message
