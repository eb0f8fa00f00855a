"""The output session: one result for any chunking, whole characters, thinking, stops, constant cost."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.output import OutputSession
from ninfer.prompt.prepared import Channel
from ninfer.spec import document

Result = tuple[str, str, str | None, int]  # reasoning, content, stop, tokens used


def answer(
    pieces: Sequence[bytes], channel: Channel = "reasoning", stops: Sequence[str] = (), push: int = 1
) -> Result:
    """What is published of tokens with these bytes, pushed ``push`` at a time."""
    session = OutputSession(lambda index: pieces[index], channel, stops)
    text = {"reasoning": "", "content": ""}
    used, stop = 0, None
    for start in range(0, len(pieces), push):
        step = session.push(range(start, min(start + push, len(pieces))))
        for where, piece in step.deltas:
            text[where] += piece
        used += step.consumed
        stop = step.stop_string
        if stop is not None:
            break
    for where, piece in session.finish():
        text[where] += piece
    return text["reasoning"], text["content"], stop, used


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


VECTORS = document("vectors/output")


@pytest.mark.clause_early("THINK-001", "THINK-002", "FIELD-011", "FIELD-012", "CHAT-011")
@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_golden_cases_in_every_chunking(case: dict[str, Any]) -> None:
    given_, expected = case["input"], case["expected"]
    data = bytes.fromhex(given_["hex"]) if "hex" in given_ else given_["text"].encode()
    for size in (1, 2, 3, 5, 7, len(data)):
        pieces = cut(data, size)
        for push in (1, 2, len(pieces)):
            reasoning, content, stop, _ = answer(pieces, given_["channel"], given_.get("stops", ()), push)
            assert (reasoning, content, stop) == (
                expected["reasoning"],
                expected["content"],
                expected.get("stop"),
            ), (size, push)


MARKUP = st.sampled_from(
    [
        "</think>",
        "</th",
        "ink>",
        "<",
        "\n",
        "\r\n",
        "\n\n",
        " ",
        "stop",
        "st",
        "op",
        "ab",
        "a",
        "b",
        "é",
        "😀",
        "x",
    ]
)
TEXT = st.lists(MARKUP, max_size=30).map("".join)
STOPS = st.lists(st.sampled_from(["stop", "op", "ab", "aab", "\n", "</think>", "😀x", "abab"]), max_size=4)


@given(TEXT, STOPS, st.sampled_from(["reasoning", "content"]), st.data())
def test_any_cut_of_text_gives_the_result_of_one_push(
    text: str, stops: list[str], channel: Channel, data: st.DataObject
) -> None:
    encoded = text.encode()
    whole = answer([encoded], channel, stops)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(encoded)), max_size=12)))
    pieces = [encoded[a:b] for a, b in zip([0, *cuts], [*cuts, len(encoded)], strict=True)]
    for parts in (cut(encoded, 1), pieces):
        for push in (1, 3, max(len(parts), 1)):
            assert answer(parts, channel, stops, push)[:3] == whole[:3]


@given(st.binary(max_size=40), st.data())
def test_invalid_bytes_become_replacement_characters_in_any_cut(data: bytes, draw: st.DataObject) -> None:
    # CPython's one-shot decoder follows Unicode 3.9, one U+FFFD for each maximal part.
    expected = data.decode("utf-8", "replace")
    size = draw.draw(st.integers(1, 5))
    assert answer(cut(data, size), "content")[1] == expected
    assert answer(cut(data, 1), "content", ["\0never"])[1] == expected


def naive(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The first stop to be complete, the longest of those that end there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(st.text(alphabet="ab\né", max_size=40), st.lists(st.text("ab\né", min_size=1, max_size=6), max_size=4))
def test_stops_equal_a_search_over_the_whole_text(text: str, stops: list[str]) -> None:
    _, content, stop, _ = answer(cut(text.encode(), 1), "content", stops)
    assert (content, stop) == naive(text, stops)


@given(TEXT, STOPS)
def test_every_published_prefix_is_a_prefix_of_the_end(text: str, stops: list[str]) -> None:
    """Nothing is published that a later token takes back, and no delta is empty."""
    pieces = cut(text.encode(), 1)
    final = answer(pieces, "reasoning", stops)
    session = OutputSession(lambda index: pieces[index], "reasoning", stops)
    so_far = {"reasoning": "", "content": ""}
    for index in range(len(pieces)):
        for channel, piece in session.push([index]).deltas:
            assert piece
            so_far[channel] += piece
        assert final[0].startswith(so_far["reasoning"])
        assert final[1].startswith(so_far["content"])


@given(TEXT, st.integers(0, 40))
def test_a_copy_previews_without_touching_the_original(text: str, at: int) -> None:
    pieces = cut(text.encode(), 1)
    session = OutputSession(lambda index: pieces[index], "reasoning", ["stop", "ab"])
    session.push(range(min(at, len(pieces))))
    preview = session.copy()
    rest = range(min(at, len(pieces)), len(pieces))
    previewed = (preview.push(rest), preview.finish(), preview.reasoning_tokens)
    assert (session.push(rest), session.finish(), session.reasoning_tokens) == previewed


def test_text_after_a_stop_is_not_used() -> None:
    session = OutputSession(lambda index: b"ab"[index : index + 1], "content", ["a"])
    first = session.push([0, 1, 1])
    assert (first.deltas, first.stop_string, first.consumed) == ([], "a", 1)
    later = session.push([1])
    assert (later.deltas, later.stop_string, later.consumed) == ([], "a", 0)
    assert session.finish() == []


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        OutputSession(lambda index: b"", "content", [""])


class TestReasoningTokens:
    """Tokens up to the one that completes the accepted close."""

    @pytest.mark.parametrize(
        ("pieces", "count"),
        [
            (["Plan", ".", "\n", "</think>", "\n\n", "Hi"], 4),
            (["Plan", ".", "\n", "</th", "ink>", "\n\n", "Hi"], 5),
            (["a", "</think>", " b", "</think>", "\n"], 4),
            (["a", "</think>", "", "\n", "x"], 2),
            (["a", "</think>", "", ".", "x"], 5),
            (["a</think>", ".</think>", "\n"], 2),
            (["Half", " a", " pl"], 3),
            (["x", "</think>"], 2),
        ],
    )
    def test_count(self, pieces: list[str], count: int) -> None:
        for push in (1, 2, 10):
            session = OutputSession(lambda index: pieces[index].encode(), "reasoning")
            for start in range(0, len(pieces), push):
                session.push(range(start, min(start + push, len(pieces))))
            session.finish()
            assert session.reasoning_tokens <= len(pieces)
            assert session.reasoning_tokens == count

    def test_content_has_none(self) -> None:
        session = OutputSession(lambda index: b"</think>\n", "content")
        session.push([0, 0])
        assert session.reasoning_tokens == 0


class TestCost:
    """Amortised constant work per token, counted in executed lines, not in seconds."""

    @pytest.mark.parametrize(
        ("piece", "channel", "stops"),
        [
            pytest.param(b"word ", "content", [], id="plain"),
            pytest.param(b"a", "content", ["a" * 400 + "b"], id="long-held-stop"),
            pytest.param(b"a", "content", ["a" * n + "b" for n in (3, 50, 200, 400)], id="four-stops"),
            pytest.param(b"\n", "reasoning", ["x"], id="line-breaks-in-thinking"),
            pytest.param(b"</think>", "reasoning", ["</think>x"], id="quoted-closes"),
            pytest.param(b"\xf0", "content", ["\ufffdx"], id="invalid-bytes"),
        ],
    )
    def test_twice_the_tokens_cost_twice_the_work(
        self, piece: bytes, channel: Channel, stops: list[str]
    ) -> None:
        once = lines_executed(piece, channel, stops, 1500)
        twice = lines_executed(piece, channel, stops, 3000)
        assert once > 1500
        assert twice <= 2.05 * once

    def test_what_is_held_is_bounded_by_stops_and_framing(self) -> None:
        session = OutputSession(lambda index: b"a\n"[index : index + 1], "reasoning", ["a" * 50 + "b"])
        framing = document("output")["thinking"]["framing_line_breaks"]
        published = 0
        for count in range(1, 2001):
            published += sum(len(text) for _, text in session.push([count % 40 > 30]).deltas)
            assert count - published <= 50 + framing


def lines_executed(piece: bytes, channel: Channel, stops: list[str], tokens: int) -> int:
    session = OutputSession(lambda index: piece, channel, stops)
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        for _ in range(tokens):
            session.push([0])
        session.finish()
    finally:
        sys.settrace(previous)
    return count
