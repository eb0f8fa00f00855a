"""Messages responses from an answer's pieces, and what streams share with them.

Owns the wire shapes of a whole message; pure values in, JSON bytes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ninfer.engine.events import Usage
from ninfer.server.answer.pieces import Call, Ended, Piece
from ninfer.server.answer.whole import WholeAnswer, put_together
from ninfer.server.messages.thinking import signature

_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "cancelled": "end_turn"}


@dataclass(frozen=True, slots=True)
class MessageIdentity:
    """What an answer repeats of its request."""

    id: str
    model: str
    omitted: bool


def whole_message(identity: MessageIdentity, pieces: Iterable[Piece]) -> bytes:
    """The message of a finished answer; ``pieces`` end with ``Ended``."""
    answer = put_together(pieces)
    message = message_object(identity, list(_blocks(identity, answer)))
    message |= stop_members(answer.ended) | {"usage": usage_object(answer.ended.usage)}
    return msgspec.json.encode(message)


def message_object(identity: MessageIdentity, content: list[dict[str, Any]]) -> dict[str, Any]:
    """A message without its end."""
    return {
        "id": identity.id,
        "type": "message",
        "role": "assistant",
        "model": identity.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
    }


def stop_members(ended: Ended) -> dict[str, Any]:
    """Why the message ended, in this protocol's words."""
    if ended.reason == "length":
        reason = "model_context_window_exceeded" if ended.context_full else "max_tokens"
    elif ended.stop_string is not None:
        reason = "stop_sequence"
    else:
        reason = _STOP_REASONS[ended.reason]
    return {
        "stop_reason": reason,
        "stop_sequence": ended.stop_string if reason == "stop_sequence" else None,
    }


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts; ``input_tokens`` are those that were not reused."""
    return usage_counts(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)


def usage_counts(prompt: int, cached: int, output: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": None,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


def thinking_block(identity: MessageIdentity, reasoning: str) -> dict[str, Any]:
    shown = "" if identity.omitted else reasoning
    return {"type": "thinking", "thinking": shown, "signature": signature(reasoning, identity.omitted)}


def tool_use_block(call: Call, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": tool_use_id(call), "name": call.name, "input": arguments}


def tool_use_id(call: Call) -> str:
    """The call's id in this protocol's spelling."""
    return "toolu_" + call.id.removeprefix("call_")


def _blocks(identity: MessageIdentity, answer: WholeAnswer) -> Iterator[dict[str, Any]]:
    if answer.reasoning:
        yield thinking_block(identity, answer.reasoning)
    if answer.content:
        yield {"type": "text", "text": answer.content}
    for call in answer.calls:
        yield tool_use_block(call, msgspec.Raw(call.arguments.encode()))
