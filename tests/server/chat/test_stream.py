"""Chat chunks: shapes by the OpenAPI file, order by the transition table, what rides on which chunk."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from conformance.http.schemas import check_schema
from conformance.http.streams import chat_events, check_order, payloads
from ninfer.engine.events import Usage
from ninfer.server.answer.pieces import Begun, Call, Ended, Piece, Prompted, Text, TimingSnapshot
from ninfer.server.chat.answers import ChatIdentity
from ninfer.server.chat.stream import StreamChoices, StreamedChat
from ninfer.server.errors import WireError

IDENTITY = ChatIdentity("chatcmpl-1", "m", 1_700_000_000)
USAGE = Usage(10, 4, 7, 3, 0.1, 0.2, 0.1)
ANSWER: list[Piece] = [
    Begun(10, 4, 0.0),
    Prompted(10, 4, 8, 0.05),
    Text("reasoning", "a", TimingSnapshot(10, 4, 1, 0.1, 0.0)),
    Text("content", "é\n", TimingSnapshot(10, 4, 7, 0.1, 0.2)),
    Call(0, "call_a", "f", "{}"),
    Ended("tool_calls", None, USAGE),
]


def chunks_of(pieces: list[Piece], **choices: bool) -> tuple[list[str], list[Any]]:
    """The events by name, and the JSON chunks."""
    answer = StreamedChat(IDENTITY, StreamChoices(**choices))
    stream = payloads(b"".join(frame for piece in pieces for frame in answer.frames(piece)))
    events = chat_events(stream)
    check_order("chat", events)
    chunks = [chunk for chunk in stream if not isinstance(chunk, str)]
    for chunk in chunks:
        check_schema("ChatChunk", chunk)
    return events, chunks


@pytest.mark.parametrize("values", list(itertools.product([False, True], repeat=4)))
def test_any_choice_gives_valid_chunks_in_order(values: tuple[bool, ...]) -> None:
    names = ("usage", "usage_choice", "timings_per_token", "progress")
    choices = dict(zip(names, values, strict=True))
    events, chunks = chunks_of(ANSWER, **choices)
    assert events.count("usage") == choices["usage"]
    assert all(("usage" in chunk) == choices["usage"] for chunk in chunks)
    # Timings end the stream, once, and stand elsewhere only where they were asked for.
    assert "timings" in chunks[-1]
    timed = [event for event, chunk in zip(events, chunks, strict=False) if "timings" in chunk]
    assert timed == (["reasoning", "content"] if choices["timings_per_token"] else []) + [
        "usage" if choices["usage"] else "finish"
    ]


def test_the_usage_chunk_may_have_an_empty_choice() -> None:
    for usage_choice in (False, True):
        _, chunks = chunks_of(ANSWER, usage=True, usage_choice=usage_choice)
        assert chunks[-1]["choices"] == (
            [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}] if usage_choice else []
        )
        assert chunks[-1]["usage"]["total_tokens"] == 17


def progress(pieces: list[Piece]) -> list[dict[str, int]]:
    _, chunks = chunks_of(pieces, progress=True)
    return [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]


def test_progress_begins_at_the_reuse_and_ends_before_the_answer() -> None:
    assert progress(ANSWER) == [
        {"total": 10, "cache": 4, "processed": 4, "time_ms": 0},
        {"total": 10, "cache": 4, "processed": 8, "time_ms": 50},
        {"total": 10, "cache": 4, "processed": 10, "time_ms": 50},
    ]


def test_a_whole_hit_is_one_report() -> None:
    pieces = [Begun(10, 10, 0.0), Prompted(10, 10, 10, 0.0), Text("content", "a"), Ended("stop", None, USAGE)]
    assert progress(pieces) == [{"total": 10, "cache": 10, "processed": 10, "time_ms": 0}]


def test_progress_never_goes_back() -> None:
    pieces = [
        Begun(9, 0, 0.0),
        *(Prompted(9, 0, n, n / 10) for n in (3, 6, 6, 5, 9)),
        Ended("length", None, USAGE),
    ]
    assert [report["processed"] for report in progress(pieces)] == [0, 3, 6, 9]


def test_a_failure_is_one_unnamed_error_event() -> None:
    answer = StreamedChat(IDENTITY, StreamChoices())
    (event,) = payloads(b"".join(answer.failed(WireError("internal_error", "m"))))
    check_schema("Error", event)
