"""Chat responses and chunks: shapes by the OpenAPI file, order by the transition table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conformance.http.schemas import check_schema
from ninfer.engine.events import Usage
from ninfer.server.answer.pieces import Call, Ended, Piece, Text
from ninfer.server.chat.answers import ChatIdentity, whole_answer

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


def test_calls_are_functions_with_their_arguments_as_text() -> None:
    calls = [Call(0, "call_a", "f", '{"b":1,"a":2}'), Call(1, "call_b", "f", "{}")]
    (choice,) = whole(*calls, reason="tool_calls")["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == [
        {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"b":1,"a":2}'}},
        {"id": "call_b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ]
    (choice,) = whole(Text("content", "x"), *calls, reason="length")["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("x", "length")
