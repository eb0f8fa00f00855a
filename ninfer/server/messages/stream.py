"""The events of a streamed message, in the order of ``spec/http/streams.yaml``.

Owns the life of content blocks: each opens once, takes its deltas and closes before the next opens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ninfer.server.answer.pieces import Begun, Call, Ended, Piece, Text
from ninfer.server.errors import WireError
from ninfer.server.messages.answers import (
    MessageIdentity,
    message_object,
    stop_members,
    tool_use_block,
    usage_counts,
    usage_object,
)
from ninfer.server.messages.envelope import ANTHROPIC
from ninfer.server.messages.thinking import signature
from ninfer.server.sse import named

_BLOCKS = {"reasoning": "thinking", "content": "text"}


class StreamedMessage:
    """One message's events; a ``StreamedAnswer``. ``request_id`` is what an error event names."""

    def __init__(self, identity: MessageIdentity, request_id: str) -> None:
        self._identity = identity
        self._request_id = request_id
        self._index = 0
        self._open: str | None = None  # the channel of the open block
        self._reasoning: list[str] = []

    def frames(self, piece: Piece) -> Iterable[bytes]:
        if isinstance(piece, Begun):
            return (self._start(piece),)
        if isinstance(piece, Text):
            return self._text(piece)
        if isinstance(piece, Call):
            return self._call(piece)
        if isinstance(piece, Ended):
            return self._end(piece)
        return ()

    def failed(self, error: WireError) -> Iterable[bytes]:
        return (_event("error", ANTHROPIC.members(error, self._request_id)),)

    def _start(self, begun: Begun) -> bytes:
        message = message_object(self._identity, [])
        message["usage"] = usage_counts(begun.prompt_tokens, begun.cached_tokens, 0)
        return _event("message_start", {"message": message})

    def _text(self, piece: Text) -> Iterator[bytes]:
        if self._open != piece.channel:
            yield from self._close()
            self._open = piece.channel
            kind = _BLOCKS[piece.channel]
            block = {"type": kind, kind: ""}
            yield self._opened(block | {"signature": ""} if kind == "thinking" else block)
        if piece.channel == "content":
            yield self._delta({"type": "text_delta", "text": piece.text})
            return
        self._reasoning.append(piece.text)
        if not self._identity.omitted:
            yield self._delta({"type": "thinking_delta", "thinking": piece.text})

    def _call(self, call: Call) -> Iterator[bytes]:
        yield from self._close()
        yield self._opened(tool_use_block(call, {}))
        yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        yield self._closed()

    def _end(self, ended: Ended) -> Iterator[bytes]:
        yield from self._close()
        yield _event("message_delta", {"delta": stop_members(ended), "usage": usage_object(ended.usage)})
        yield _event("message_stop", {})

    def _close(self) -> Iterator[bytes]:
        """End the open block, if there is one; a thinking block is signed first."""
        if self._open is None:
            return
        if self._open == "reasoning":
            sign = signature("".join(self._reasoning), self._identity.omitted)
            yield self._delta({"type": "signature_delta", "signature": sign})
            self._reasoning = []
        self._open = None
        yield self._closed()

    def _opened(self, block: dict[str, Any]) -> bytes:
        return _event("content_block_start", {"index": self._index, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", {"index": self._index, "delta": delta})

    def _closed(self) -> bytes:
        closed = _event("content_block_stop", {"index": self._index})
        self._index += 1
        return closed


def _event(name: str, members: dict[str, Any]) -> bytes:
    return named(name, msgspec.json.encode({"type": name} | members))
