"""Chat responses and chunks: shapes by the OpenAPI file, order by the transition table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conformance.http.schemas import check_schema
from conformance.http.streams import chat_events, check_order, payloads
from ninfer.engine.events import Usage
from ninfer.server.answer.pieces import Begun, Ended, Piece, Text
from ninfer.server.chat.answers import ChatIdentity, StreamedChat, whole_answer

IDENTITY = ChatIdentity("chatcmpl-1", "m", 1_700_000_000)
USAGE = Usage(10, 4, 7, 3, 0.1, 0.2, 0.1)


def whole(*pieces: Piece, reason: Any = "stop") -> dict[str, Any]:
    body: dict[str, Any] = json.loads(whole_answer(IDENTITY, [*pieces, Ended(reason, None, USAGE)]))
    check_schema("ChatCompletion", body)
    return body


def test_channels_stay_apart() -> None:
    message = whole(Text("reasoning", "a"), Text("reasoning", "b"), Text("content", "c"))["choices"][0][
        "message"
    ]
    assert message == {"role": "assistant", "content": "c", "refusal": None, "reasoning_content": "ab"}


def test_an_answer_without_reasoning_has_no_such_member() -> None:
    assert "reasoning_content" not in whole(Text("content", "c"))["choices"][0]["message"]


@pytest.mark.parametrize(("reason", "wire"), [("stop", "stop"), ("length", "length")])
def test_finish_reasons(reason: str, wire: str) -> None:
    assert whole(reason=reason)["choices"][0]["finish_reason"] == wire


def test_usage_adds_up_and_has_details() -> None:
    assert whole()["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 7,
        "total_tokens": 17,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }


@pytest.mark.parametrize("include_usage", [False, True])
def test_chunks_are_valid_and_in_order(include_usage: bool) -> None:
    answer = StreamedChat(IDENTITY, include_usage)
    pieces = [
        Begun(10, 4, 0.0),
        Text("reasoning", "a"),
        Text("content", "é\n"),
        Ended("length", None, USAGE),
    ]
    stream = payloads(b"".join(frame for piece in pieces for frame in answer.frames(piece)))
    events = chat_events(stream)
    check_order("chat", events)
    assert events.count("usage") == include_usage
    chunks = [chunk for chunk in stream if not isinstance(chunk, str)]
    for chunk in chunks:
        check_schema("ChatChunk", chunk)
        assert ("usage" in chunk) == include_usage
    assert chunks[2]["choices"][0]["delta"] == {"content": "é\n"}
