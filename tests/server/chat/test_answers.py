"""Chat responses and chunks: shapes by the OpenAPI file, order by the transition table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conformance.http.schemas import check_schema
from conformance.http.streams import chat_events, check_order
from ninfer.engine.events import Delta, Finished, Usage
from ninfer.server.chat.answers import ChatIdentity, StreamedAnswer, WholeAnswer

IDENTITY = ChatIdentity("chatcmpl-1", "m", 1_700_000_000)
USAGE = Usage(10, 4, 7, 3, 0.1, 0.2, 0.1)


def whole(*deltas: Delta, reason: Any = "stop") -> dict[str, Any]:
    answer = WholeAnswer(IDENTITY)
    for delta in deltas:
        answer.add(delta)
    body: dict[str, Any] = json.loads(answer.body(Finished("r", reason, USAGE)))
    check_schema("ChatCompletion", body)
    return body


def test_channels_stay_apart() -> None:
    message = whole(Delta("r", "reasoning", "a"), Delta("r", "reasoning", "b"), Delta("r", "content", "c"))[
        "choices"
    ][0]["message"]
    assert message == {"role": "assistant", "content": "c", "refusal": None, "reasoning_content": "ab"}


def test_an_answer_without_reasoning_has_no_such_member() -> None:
    assert "reasoning_content" not in whole(Delta("r", "content", "c"))["choices"][0]["message"]


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
    answer = StreamedAnswer(IDENTITY, include_usage)
    lines = [
        answer.role(),
        answer.delta(Delta("r", "reasoning", "a")),
        answer.delta(Delta("r", "content", "é\n")),
        *answer.finish(Finished("r", "length", USAGE)),
    ]
    assert lines.pop() == b"[DONE]"
    chunks = [json.loads(line) for line in lines]
    assert not any(b"\n" in line for line in lines)
    for chunk in chunks:
        check_schema("ChatChunk", chunk)
        assert ("usage" in chunk) == include_usage
    events = chat_events([*chunks, "[DONE]"])
    check_order("chat", events)
    assert events.count("usage") == include_usage
    assert chunks[2]["choices"][0]["delta"] == {"content": "é\n"}
