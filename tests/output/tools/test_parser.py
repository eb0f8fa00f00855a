"""The tool parser: one result for any cut, nothing lost, text at once, linear cost."""

from __future__ import annotations

import json
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.output.tools import ToolParser, shown_markup
from ninfer.prompt.prepared import Channel
from ninfer.spec import document
from tests.output.tools.running import cut, declared, run

TOOLS: dict[str, dict[str, Any]] = {
    "f": {"s": {"type": "string"}, "n": {"type": "integer"}, "x": {}},
    "g": {},
}
PIECES = [
    "<tool_call>", "</tool_call>", "<function_calls>", "</function_calls>", "<function=f>", "<function=h>",
    '<function name="g">', "<function=f", "</function>", '<invoke name="f">', "<invoke=g>", "</invoke>",
    "<parameter=s>", "<parameter=n>", '<parameter name="x">', "<param=s>", "</parameter>", "</param>",
    "function=f>",
    "<f>", "<", ">", "=", "\n", " ", "\r\n", "7", "text", "name=", '"', "é", "<function ", "<tool", "`",
]  # fmt: skip
WHOLE = [
    "<tool_call>\n<function=f>\n<parameter=s>\nv\n</parameter>\n</function>\n</tool_call>",
    "<function=g></function>",
    "<tool_call>\n<function=h>\n</function>\n</tool_call>",
]
MARKUP = st.lists(st.sampled_from(PIECES + WHOLE), max_size=25).map("".join)
CHANNELS: st.SearchStrategy[Channel] = st.sampled_from(["reasoning", "content"])


@given(MARKUP, MARKUP, st.booleans(), st.booleans(), st.data())
def test_any_cut_gives_one_result(
    thought: str, answer: str, tolerant: bool, truncated: bool, data: st.DataObject
) -> None:
    def pieces(size: int) -> list[tuple[Channel, str]]:
        return cut("reasoning", thought, size) + cut("content", answer, size)

    def outcome(given_: list[tuple[Channel, str]]) -> Any:
        return run(given_, TOOLS, tolerant=tolerant, truncated=truncated, thinking_closed=bool(answer))

    whole = outcome([("reasoning", thought), *([("content", answer)] if answer else [])])
    assert outcome(pieces(1)) == whole
    assert outcome(pieces(data.draw(st.integers(2, 40)))) == whole


@given(MARKUP, st.booleans(), st.booleans())
def test_text_without_calls_is_the_text(text: str, tolerant: bool, truncated: bool) -> None:
    outcome = run(cut("content", text, 5), TOOLS, tolerant=tolerant, truncated=truncated)
    if outcome.calls:
        assert text.startswith(outcome.content)
    else:
        assert outcome.content == text
    assert outcome.diagnostics["fallback_reason"] == "none" or outcome.diagnostics["marker_seen"]
    if not tolerant:
        assert outcome.diagnostics["fallback_reason"] != "truncated_tail"
        assert not outcome.diagnostics["tolerant_recovered"]


@given(MARKUP)
def test_tolerance_never_loses_a_strict_turn(text: str) -> None:
    strict, tolerant = (run([("content", text)], TOOLS, tolerant=t) for t in (False, True))
    if strict.calls:
        assert tolerant.calls
        assert strict.content.startswith(tolerant.content)


@given(MARKUP, st.booleans())
def test_what_is_published_is_never_taken_back(text: str, tolerant: bool) -> None:
    parser = ToolParser(declared(TOOLS), tolerant)
    published = ""
    for character in text:
        published += "".join(piece for _, piece in parser.push("content", character))
    final = published + "".join(
        piece for _, piece in parser.finish(stopped_by_token=True, truncated=False).texts
    )
    assert final == run([("content", text)], TOOLS, tolerant=tolerant).content


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | FLOATS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
# What the format cannot carry: a value with its own tags in it.
STRINGS = st.text(max_size=30).filter(lambda text: "parameter" not in text and "\r" not in text)
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_. -]{0,12}", fullmatch=True)


@given(st.dictionaries(KEYS, STRINGS | JSON, max_size=5), st.sampled_from(["", "I call.\n\n"]))
@pytest.mark.clause_early("TMPL-008")
def test_a_rendered_call_is_read_back(arguments: dict[str, Any], before: str) -> None:
    """As the template renders history: strings raw, other values as JSON; members in their order."""
    text = before + "<tool_call>\n<function=t>\n"
    for key, value in arguments.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        text += f"<parameter={key}>\n{shown}\n</parameter>\n"
    types = {key: {"type": _type(value)} for key, value in arguments.items()}
    outcome = run(cut("content", text + "</function>\n</tool_call>", 9), {"t": types})
    assert outcome.content == before.strip()
    ((name, found),) = outcome.calls
    assert name == "t"
    assert list(json.loads(found).items()) == list(arguments.items())


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {
        str: "string",
        int: "integer",
        float: "number",
        list: "array",
        dict: "object",
        type(None): "null",
    }
    return kinds[type(value)]


class TestStreaming:
    """Text is published at once; only white space, the beginning of a marker and what follows one wait."""

    @pytest.mark.parametrize(
        "opener",
        [
            "<tool_call>",
            "<function_calls>",
            "<function=g>",
            "<invoke=g>",
            '<invoke name="g">',
            '<function  id="1" name="g">',
        ],
    )
    def test_only_a_marker_is_held(self, opener: str) -> None:
        parser = ToolParser(declared(TOOLS))
        shown = ""
        for character in "a < b <function> <tool> <functional=1> " + opener + " later":
            shown += "".join(text for _, text in parser.push("content", character))
        assert shown == "a < b <function> <tool> <functional=1>"

    def test_text_follows_what_turned_out_to_be_no_marker(self) -> None:
        parser = ToolParser(declared(TOOLS))
        assert parser.push("content", "x <tool_c") == [("content", "x")]
        assert parser.push("content", "ar> y") == [("content", " <tool_car> y")]
        assert parser.push("content", " <invoke the") == []
        assert parser.push("content", " name>") == [("content", " <invoke the name>")]

    def test_an_opener_without_end_is_text(self) -> None:
        parser = ToolParser(declared(TOOLS))
        limit = document("tools")["max_opener_characters"]
        assert parser.push("content", "<invoke " + "a" * limit) == []
        assert parser.push("content", "b") == [("content", "<invoke " + "a" * limit + "b")]

    def test_thinking_streams_in_a_strict_server(self) -> None:
        strict, tolerant = (ToolParser(declared(TOOLS), flag) for flag in (False, True))
        assert strict.push("reasoning", "a <tool_call> b") == [("reasoning", "a <tool_call> b")]
        assert tolerant.push("reasoning", "a <tool_call> b") == [("reasoning", "a")]
        assert tolerant.push("content", "c") == [("reasoning", " <tool_call> b"), ("content", "c")]


class TestNames:
    """Names are letters, digits, ``_`` and ``-``, at most 256 bytes."""

    @pytest.mark.parametrize(("length", "reason"), [(256, "none"), (257, "invalid_tool_name")])
    def test_length(self, length: int, reason: str) -> None:
        name = "n" * length
        outcome = run([("content", f"<function={name}></function>")], {name: {}})
        assert outcome.diagnostics["fallback_reason"] == reason


class TestShownMarkup:
    """The one line of the console's warning."""

    def test_breaks_become_spaces(self) -> None:
        assert shown_markup("<tool_call>\n\tx\r\n") == "<tool_call>  x  "

    def test_a_long_one_is_cut_by_bytes(self) -> None:
        assert shown_markup("a" * 240) == "a" * 240
        assert shown_markup("a" * 241) == "a" * 240 + "..."
        assert shown_markup("a" * 239 + "é") == "a" * 239 + "..."


CALL = "<tool_call>\n<function=f>\n<parameter=s>\nv\n</parameter>\n</function>\n</tool_call>\n"
ADVERSARIES = {
    "plain": "word ",
    "white space": "\n",
    "calls and a tail": CALL,
    "undeclared calls": CALL.replace("=f", "=h"),
    "open parameters": "<tool_call><function=f><parameter=s>",
    "open containers": "<tool_call>",
    "functions": "<function=f>",
    "quoted closers": "</parameter>\n</function> ",
    "values in values": "<function=f><parameter=s></parameter>",
    "unfinished openers": "<invoke a",
    "cut openers": "<function=f ",
}


class TestCost:
    """Twice the text costs twice the work, counted in executed lines."""

    @pytest.mark.parametrize("unit", ADVERSARIES.values(), ids=ADVERSARIES)
    @pytest.mark.parametrize("tolerant", [False, True])
    @pytest.mark.parametrize("channel", ["content", "reasoning"])
    def test_twice_the_text_costs_twice_the_work(self, unit: str, tolerant: bool, channel: Channel) -> None:
        once, twice = (work(unit * n, tolerant, channel) for n in (150, 300))
        assert twice <= 2.1 * once + 200

    def test_an_unfinished_call(self) -> None:
        head = "<tool_call>\n<function=f>\n<parameter=s>\n"
        once, twice = (work(head + "a line of code\n" * n, True, "content") for n in (200, 400))
        assert twice <= 2.1 * once


def work(text: str, tolerant: bool, channel: Channel) -> int:
    """Lines executed while ``text`` is pushed in pieces of four and finished."""
    parser = ToolParser(declared(TOOLS), tolerant)
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        for _, piece in cut(channel, text + " end", 4):
            parser.push(channel, piece)
        parser.finish(stopped_by_token=True, truncated=False, thinking_closed=channel == "content")
    finally:
        sys.settrace(previous)
    return count
