"""Chat Completions responses from the pieces of an answer, and what streams share with them.

Owns the wire shapes of a whole answer; pure values in, JSON bytes out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from ninfer.engine.events import Usage
from ninfer.server.answer.pieces import Call, Ended, EndReason, Piece, Text
from ninfer.server.chat.timings import usage_timings


@dataclass(frozen=True, slots=True)
class ChatIdentity:
    """What every response and chunk of one request repeats; ``created`` is in Unix seconds."""

    id: str
    model: str
    created: int


def whole_answer(identity: ChatIdentity, pieces: Iterable[Piece]) -> bytes:
    """The ``chat.completion`` object of a whole answer."""
    texts: dict[str, list[str]] = {"reasoning": [], "content": []}
    calls: list[dict[str, Any]] = []
    ended: Ended | None = None
    for piece in pieces:
        if isinstance(piece, Text):
            texts[piece.channel].append(piece.text)
        elif isinstance(piece, Call):
            calls.append(call_object(piece))
        elif isinstance(piece, Ended):
            ended = piece
    assert ended is not None, "an answer without its end"
    content = "".join(texts["content"])
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content if content or not calls else None,
        "refusal": None,
    }
    if reasoning := "".join(texts["reasoning"]):
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": finish_reason(ended.reason),
    }
    members = {
        "choices": [choice],
        "usage": usage_object(ended.usage),
        "timings": usage_timings(ended.usage),
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
