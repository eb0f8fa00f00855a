"""Chat Completions responses from the pieces of an answer, and what streams share with them.

Owns the wire shapes of a whole answer; pure values in, JSON bytes out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from ninfer.engine.events import Usage
from ninfer.server.answer.pieces import Call, EndReason, Piece
from ninfer.server.answer.whole import put_together
from ninfer.server.chat.timings import usage_timings


@dataclass(frozen=True, slots=True)
class ChatIdentity:
    """What every response and chunk of one request repeats; ``created`` is in Unix seconds."""

    id: str
    model: str
    created: int


def whole_answer(identity: ChatIdentity, pieces: Iterable[Piece]) -> bytes:
    """The ``chat.completion`` object of a whole answer."""
    answer = put_together(pieces)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.content if answer.content or not answer.calls else None,
        "refusal": None,
    }
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [call_object(call) for call in answer.calls]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": finish_reason(answer.ended.reason),
    }
    members = {
        "choices": [choice],
        "usage": usage_object(answer.ended.usage),
        "timings": usage_timings(answer.ended.usage),
    }
    return encoded(identity, "chat.completion", members)


def finish_reason(reason: EndReason) -> str:
    """The wire's reason; a cancelled request has no reader, so its name does not matter."""
    return "stop" if reason == "cancelled" else reason


def call_object(call: Call) -> dict[str, Any]:
    """A tool call; custom tools come back as functions too."""
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts as OpenAI writes them, with cached and reasoning details."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def encoded(identity: ChatIdentity, kind: str, members: dict[str, Any]) -> bytes:
    """One JSON object with what every object of a request repeats."""
    head = {"id": identity.id, "object": kind, "created": identity.created, "model": identity.model}
    return msgspec.json.encode(head | members)
