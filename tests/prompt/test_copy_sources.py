"""De-numbered tool results: which lines, which separators, and that budget and cancellation end the work."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.prompt import copy_sources as room
from ninfer.prompt.conversation import Conversation, Message, TextPart
from ninfer.prompt.copy_sources import copy_sources, without_numbers
from ninfer.prompt.tokenizer import TokenArray


def by_character(texts: Sequence[str]) -> list[TokenArray]:
    return [np.array([ord(character) for character in text], np.int32) for text in texts]


def sources(*results: str, budget: int = 10_000) -> list[str]:
    """The source texts of a conversation with these tool results."""
    messages = [Message("user", (TextPart("1: a\n2: b\n3: c"),)), Message("assistant", (TextPart("ok"),))]
    messages += [Message("tool", (TextPart(result),)) for result in results]
    found = copy_sources(Conversation(tuple(messages)), by_character, budget)
    return ["".join(map(chr, tokens)) for tokens in found]


@pytest.mark.clause("NGRAM-031")
@pytest.mark.parametrize("separator", [": ", "\t", "→", "| "])
@pytest.mark.parametrize("prefix", ["", "L", "     ", "  L"])
def test_separators_and_prefix(separator: str, prefix: str) -> None:
    lines = [f"{prefix}{number}{separator}x" for number in (9, 10, 11)]
    assert sources("\n".join(lines)) == ["x\nx\nx"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1: a\n2: b", []),
        ("1: a\n3: b\n4: c", []),
        ("1: a\n2: b\n3: c", ["a\nb\nc"]),
        ("1: a\n2: b\nand\n3: c", []),
        ("head\n7: a\n8: b\n9: c\ntail", ["a\nb\nc\n"]),
        ("1: a\n2: b\n3: c\n1: d\n2: e\n3: f", ["a\nb\nc\n", "d\ne\nf"]),
        ("1. a\n2. b\n3. c", []),
        ("1:a\n2:b\n3:c", []),
        ("1: a\n2:\n3: c\n", ["a\n\nc\n"]),
        ("x1: a\nx2: b\nx3: c", []),
        ("", []),
    ],
)
def test_three_consecutive_numbers_make_a_source(text: str, wanted: list[str]) -> None:
    assert sources(text) == wanted


@pytest.mark.clause("NGRAM-032")
def test_indentation_line_ends_and_the_last_line_break_survive() -> None:
    assert sources("1: \tfoo\r\n2:  bar\r\n3: \r\n") == ["\tfoo\r\n bar\r\n\r\n"]
    assert sources("1: a\r\n2: b\r\n3: c") == ["a\r\nb\r\nc"]


def test_only_tool_results_are_read() -> None:
    assert sources() == []


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), max_size=30), min_size=3, max_size=40
    ),
    st.integers(0, 10_000),
    st.sampled_from([": ", "\t", "→", "| "]),
    st.booleans(),
)
def test_what_was_numbered_comes_back(lines: list[str], first: int, separator: str, final: bool) -> None:
    numbered = "\n".join(f"{first + place}{separator}{line}" for place, line in enumerate(lines))
    end = "\n" if final else ""
    assert list(without_numbers(numbered + end)) == ["\n".join(lines) + end]


@pytest.mark.clause_early("NGRAM-036")
def test_the_budget_ends_the_work() -> None:
    result = "\n".join(f"{number}: line" for number in range(1, 20_001))
    encoded: list[int] = []

    def encode(texts: Sequence[str]) -> list[TokenArray]:
        encoded.extend(map(len, texts))
        return by_character(texts)

    conversation = Conversation((Message("tool", (TextPart(result),)), Message("tool", (TextPart(result),))))
    (tokens,) = copy_sources(conversation, encode, 100)
    assert len(tokens) == 100
    assert sum(encoded) < 2 * room._STEP
    assert copy_sources(conversation, encode, 0) == ()


@pytest.mark.clause_early("NGRAM-037")
def test_cancellation_ends_the_work() -> None:
    result = "\n".join(f"{number}: line" for number in range(1, 20_001))
    calls = 0

    def encode(texts: Sequence[str]) -> list[TokenArray]:
        nonlocal calls
        calls += 1
        return by_character(texts)

    conversation = Conversation((Message("tool", (TextPart(result),)),))
    copy_sources(conversation, encode, 10**6, cancelled=lambda: calls == 2)
    assert calls == 2


@given(st.lists(st.text(st.sampled_from("a \n\r"), max_size=12), max_size=60))
def test_pieces_are_cut_where_lines_begin(lines: list[str]) -> None:
    text = "\n".join(lines)
    original, room._STEP = room._STEP, 7
    try:
        pieces = list(room._pieces(text))
    finally:
        room._STEP = original
    assert "".join(pieces) == text
    for before, after in itertools.pairwise(pieces):
        assert before.endswith("\n")
        assert after[0] not in "\r\n"
