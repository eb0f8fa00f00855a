"""Events to pieces: order, ids, reasons, and that no cutting of text changes the answer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from ninfer.engine.events import Delta, Failed, Finished, Progress, RequestEvent, Started, Usage
from ninfer.errors import EngineError, RequestError
from ninfer.output.thinking import ChannelText
from ninfer.output.tools import ParsedCall, ParsedTurn
from ninfer.prompt.prepared import Channel
from ninfer.server.answer.pieces import Begun, Call, Ended, Piece, Prompted, Text, TimingSnapshot
from ninfer.server.answer.reader import AnswerReader

USAGE = Usage(10, 4, 7, 3, 0.1, 0.2, 0.1)


class Holding:
    """A parser that holds every content text and reads two calls out of it."""

    def __init__(self) -> None:
        self.ends: list[dict[str, bool]] = []

    def push(self, channel: Channel, text: str) -> Sequence[ChannelText]:
        return ((channel, text),) if channel == "reasoning" else ()

    def finish(self, **ends: bool) -> ParsedTurn:
        self.ends.append(ends)
        return ParsedTurn((("content", "kept"),), (ParsedCall("a", '{"x":1}'), ParsedCall("a", "{}")))


def read(*events: RequestEvent, **members: Any) -> list[Piece]:
    reader = AnswerReader(call_id=map("call_{}".format, itertools.count()).__next__, **members)
    return [piece for event in events for piece in reader.feed(event)]


def test_a_plain_answer() -> None:
    pieces = read(
        Started("r", 10, 4, 0.5),
        Progress("r", 10, 4, 10, 0.1),
        Delta("r", "reasoning", "a", (1,), 1, 0.1, 0.0),
        Delta("r", "content", "b", (2, 3), 3, 0.1, 0.2),
        Delta("r", "content", "", (4,), 4, 0.1, 0.3),
        Finished("r", "stop", USAGE, "x"),
    )
    assert pieces == [
        Begun(10, 4, 0.5),
        Prompted(10, 4, 10, 0.1),
        Text("reasoning", "a", TimingSnapshot(10, 4, 1, 0.1, 0.0)),
        Text("content", "b", TimingSnapshot(10, 4, 3, 0.1, 0.2)),
        Ended("stop", "x", USAGE),
    ]


def test_calls_come_at_the_end_after_held_text() -> None:
    parser = Holding()
    pieces = read(Delta("r", "content", "<tool_call>"), Finished("r", "stop", USAGE), parser=parser)
    assert pieces == [
        Text("content", "kept"),
        Call(0, "call_0", "a", '{"x":1}'),
        Call(1, "call_1", "a", "{}"),
        Ended("tool_calls", None, USAGE),
    ]
    assert parser.ends == [{"stopped_by_token": True, "truncated": False, "thinking_closed": True}]


@pytest.mark.parametrize(
    ("reason", "stop_string", "ends"),
    [
        ("length", None, {"stopped_by_token": False, "truncated": True}),
        ("stop", "x", {"stopped_by_token": False, "truncated": False}),
        ("cancelled", None, {"stopped_by_token": False, "truncated": False}),
    ],
)
def test_the_parser_is_told_how_the_turn_ended(
    reason: Any, stop_string: str | None, ends: dict[str, bool]
) -> None:
    parser = Holding()
    ended = read(Finished("r", reason, USAGE, stop_string), parser=parser)[-1]
    assert isinstance(ended, Ended)
    assert parser.ends == [ends | {"thinking_closed": True}]
    # A limit stays the reason, whatever was called before it.
    assert ended.reason == ("tool_calls" if reason == "stop" else reason)


@pytest.mark.parametrize("context_bound", [False, True])
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_full_context_is_told_from_the_requests_own_limit(reason: Any, context_bound: bool) -> None:
    ended = read(Finished("r", reason, USAGE), context_bound=context_bound)[-1]
    assert isinstance(ended, Ended)
    assert ended.context_full == (reason == "length" and context_bound)


@pytest.mark.parametrize(
    ("code", "kind"), [("constraint_dead_end", RequestError), ("engine_unavailable", EngineError)]
)
def test_a_failure_is_raised(code: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        read(Failed("r", code, "m"))


def test_call_ids_are_their_own() -> None:
    ids = set()
    for _ in range(2):
        reader = AnswerReader(Holding())
        ids |= {piece.id for piece in reader.feed(Finished("r", "stop", USAGE)) if isinstance(piece, Call)}
    assert len(ids) == 4
    assert all(call.startswith("call_") for call in ids)
