"""Chat Completions responses and stream chunks from a generation's events.

Owns the wire shapes; pure values in, JSON bytes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ninfer.engine.events import Delta, Finished, Usage

_MEMBERS = {"reasoning": "reasoning_content", "content": "content"}


@dataclass(frozen=True, slots=True)
class ChatIdentity:
    """What every response and chunk of one request repeats; ``created`` is in Unix seconds."""

    id: str
    model: str
    created: int


class WholeAnswer:
    """Collects a generation into one ``chat.completion`` object."""

    def __init__(self, identity: ChatIdentity) -> None:
        self._identity = identity
        self._texts: dict[str, list[str]] = {"reasoning": [], "content": []}

    def add(self, delta: Delta) -> None:
        self._texts[delta.channel].append(delta.text)

    def body(self, finished: Finished) -> bytes:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(self._texts["content"]),
            "refusal": None,
        }
        if reasoning := "".join(self._texts["reasoning"]):
            message["reasoning_content"] = reasoning
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason(finished),
        }
        return _encode(
            self._identity, "chat.completion", {"choices": [choice], "usage": usage_object(finished.usage)}
        )


class StreamedAnswer:
    """Makes the chunks of one stream, in the order of ``spec/http/streams.yaml``."""

    def __init__(self, identity: ChatIdentity, include_usage: bool) -> None:
        self._identity = identity
        self._include_usage = include_usage

    def role(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def delta(self, delta: Delta) -> bytes:
        return self._chunk({_MEMBERS[delta.channel]: delta.text})

    def finish(self, finished: Finished) -> Iterator[bytes]:
        """The finish chunk, the usage chunk if asked for, and the end mark."""
        yield self._chunk({}, finish_reason(finished))
        if self._include_usage:
            yield self._encode({"choices": [], "usage": usage_object(finished.usage)})
        yield b"[DONE]"

    def _chunk(self, delta: dict[str, str], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        members: dict[str, Any] = {"choices": [choice]}
        if self._include_usage:
            members["usage"] = None
        return self._encode(members)

    def _encode(self, members: dict[str, Any]) -> bytes:
        return _encode(self._identity, "chat.completion.chunk", members)


def finish_reason(finished: Finished) -> Literal["stop", "length"]:
    """The wire's reason; a cancelled request has no reader, so its name does not matter."""
    return "length" if finished.reason == "length" else "stop"


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
