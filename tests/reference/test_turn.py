"""What is committed, what is published, and why an answer ends; logits by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ninfer.engine.events import Delta
from ninfer.engine.turn import Turn
from tests.reference.requests import request, sampling

TEXT = [b"a", b"b", b"stop", b"\xe2\x82", b"\xac", b"</think>", b"\n\n", b"end"]


def turn(room: int = 10, vocabulary: int = len(TEXT), **fields: Any) -> Turn:
    return Turn(request([1, 2, 3], **fields), TEXT.__getitem__, 3, room, vocabulary)


def published(deltas: Any) -> list[tuple[str, str, tuple[int, ...]]]:
    found = []
    for delta in deltas:
        assert isinstance(delta, Delta)
        found.append((delta.channel, delta.text, delta.token_ids))
    return found


def test_text_and_ids_are_published_as_they_become_whole() -> None:
    answer = turn()
    assert published(answer.commit(0)) == [("content", "a", (0,))]
    assert published(answer.commit(3)) == []
    assert published(answer.commit(4)) == [("content", "€", (3, 4))]
    assert answer.reason is None
    assert answer.committed == 3


def test_ids_whose_text_never_came_are_published_at_the_end() -> None:
    answer = turn(room=1)
    assert published(answer.commit(3)) == []
    assert answer.reason == "length"
    assert published(answer.close()) == [("content", "�", (3,))]
    silent = Turn(request([1]), lambda token: b"", 1, 1, 8)
    assert published(silent.commit(5)) == []
    assert published(silent.close()) == [("content", "", (5,))]


def test_a_stop_token_counts_but_is_not_published() -> None:
    answer = turn(stop_token_ids=(7,))
    list(answer.commit(0))
    assert published(answer.commit(7)) == []
    assert (answer.reason, answer.committed, answer.stop_string) == ("stop", 2, None)
    assert published(answer.close()) == []


def test_stop_tokens_can_be_ignored() -> None:
    answer = turn(stop_token_ids=(7,), ignore_stop_tokens=True)
    assert published(answer.commit(7)) == [("content", "end", (7,))]
    assert answer.reason is None


def test_a_stop_string_ends_the_answer_before_it() -> None:
    answer = turn(stops=("bst",))
    assert published(answer.commit(0)) == [("content", "a", (0,))]
    assert published(answer.commit(1)) == []
    assert published(answer.commit(2)) == []
    assert (answer.reason, answer.stop_string, answer.committed) == ("stop", "bst", 3)
    assert published(answer.close()) == [("content", "", (1, 2))]


def test_the_end_by_length_comes_after_a_stop() -> None:
    answer = turn(room=1, stops=("a",))
    list(answer.commit(0))
    assert (answer.reason, answer.stop_string) == ("stop", "a")
    answer = turn(room=1, stop_token_ids=(0,))
    list(answer.commit(0))
    assert answer.reason == "stop"


def test_no_room_is_an_end_by_length() -> None:
    assert turn(room=0).reason == "length"
    assert turn(room=-3).reason == "length"


def test_reasoning_is_counted_and_kept_apart() -> None:
    answer = turn(initial_channel="reasoning")
    found = [entry for token in (0, 1, 5, 6, 7) for entry in published(answer.commit(token))]
    found += published(answer.close())
    text = {channel: "".join(t for c, t, _ in found if c == channel) for channel in ("reasoning", "content")}
    assert text == {"reasoning": "ab", "content": "end"}
    assert [token for _, _, ids in found for token in ids] == [0, 1, 5, 6, 7]
    assert answer.reasoning_tokens == 3


def test_draws_see_what_was_committed() -> None:
    answer = turn(parameters=sampling(0.0, presence_penalty=1.0))
    logits = np.array([1.0, 0.5, 0, 0, 0, 0, 0, 0], np.float32)
    drawn = []
    for _ in range(2):
        token = answer.draw(logits)
        drawn.append(token)
        list(answer.commit(token))
    assert drawn == [0, 1]


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_ids_outside_the_vocabulary_are_never_drawn(temperature: float) -> None:
    answer = turn(room=100, vocabulary=2, parameters=sampling(temperature))
    logits = np.array([0.0, 0.1, 9.0, 9.0], np.float32)
    for _ in range(50):
        token = answer.draw(logits)
        assert token < 2
        list(answer.commit(token))
