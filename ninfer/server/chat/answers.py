"""Chat Completions responses and stream chunks from the pieces of an answer.

Owns the wire shapes; pure values in, JSON bytes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ninfer.engine.events import Usage
from ninfer.server.answer.pieces import Begun, Call, Ended, EndReason, Piece, Text
from ninfer.server.envelopes import OPENAI
from ninfer.server.errors import WireError
from ninfer.server.sse import unnamed

_MEMBERS = {"reasoning": "reasoning_content", "content": "content"}


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
    return _encode(identity, "chat.completion", {"choices": [choice], "usage": usage_object(ended.usage)})


class StreamedChat:
    """Makes the chunks of one stream, in the order of ``spec/http/streams.yaml``."""

    def __init__(self, identity: ChatIdentity, include_usage: bool) -> None:
        self._identity = identity
        self._include_usage = include_usage

    def frames(self, piece: Piece) -> Iterator[bytes]:
        """The events of one piece; ``Ended`` brings finish, usage if asked for, and the end mark."""
        if isinstance(piece, Text):
            yield self._chunk({_MEMBERS[piece.channel]: piece.text})
        elif isinstance(piece, Begun):
            yield self._chunk({"role": "assistant", "content": ""})
        elif isinstance(piece, Call):
            yield self._chunk({"tool_calls": [{"index": piece.index} | call_object(piece)]})
        elif isinstance(piece, Ended):
            yield from self._end(piece)

    def failed(self, error: WireError) -> Iterator[bytes]:
        """An error event; the connection closes after it without an end mark."""
        yield unnamed(OPENAI.body(error))

    def _end(self, ended: Ended) -> Iterator[bytes]:
        yield self._chunk({}, finish_reason(ended.reason))
        if self._include_usage:
            yield self._event({"choices": [], "usage": usage_object(ended.usage)})
        yield unnamed(b"[DONE]")

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        members: dict[str, Any] = {"choices": [choice]}
        if self._include_usage:
            members["usage"] = None
        return self._event(members)

    def _event(self, members: dict[str, Any]) -> bytes:
        return unnamed(_encode(self._identity, "chat.completion.chunk", members))


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


def _encode(identity: ChatIdentity, kind: str, members: dict[str, Any]) -> bytes:
    head = {"id": identity.id, "object": kind, "created": identity.created, "model": identity.model}
    return msgspec.json.encode(head | members)
