"""One Response from its beginning to its end: the wire object in every state, and its keeping.

Owns status, usage and the members that repeat the request; its output Items are ``output.py``'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ninfer.engine.events import Usage
from ninfer.engine.requests import SamplingParameters
from ninfer.server.answer.pieces import Call, Ended, EndReason, Piece, Text
from ninfer.server.errors import WireError
from ninfer.server.response_store import Context, ResponseStore, StoredResponse
from ninfer.server.responses.output import Output
from ninfer.server.responses.request import ResponsesRequest

_STATUS: dict[EndReason, str] = {
    "stop": "completed",
    "tool_calls": "completed",
    "length": "incomplete",
    "cancelled": "cancelled",
}


class Answer:
    """One Response; ``settle`` ends it and keeps it where the request says so. Times are Unix seconds."""

    def __init__(
        self,
        response_id: str,
        request: ResponsesRequest,
        sampling: SamplingParameters,
        store: ResponseStore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._id = response_id
        self._request = request
        self._sampling = sampling
        self._store = store
        self._clock = clock
        self._created_at = int(clock())
        self.output = Output(request.choices)

    def whole(self, pieces: Iterable[Piece]) -> bytes:
        """The JSON of the whole Response. Errors: as ``settle``."""
        for piece in pieces:
            if isinstance(piece, Text):
                self.output.add(piece.channel, piece.text)
            elif isinstance(piece, Call):
                self.output.call(piece)
            elif isinstance(piece, Ended):
                self.output.end("incomplete" if piece.reason in ("length", "cancelled") else "completed")
                return self.settle(piece)
        raise AssertionError("an answer without its end")

    def snapshot(self, status: str) -> dict[str, Any]:
        """The object as it stands before its end."""
        return self._object(status, [])

    def failed(self, error: WireError) -> dict[str, Any]:
        """The object of a Response that failed; its output is not returned."""
        return self._object("failed", [], error={"code": error.code, "message": error.message})

    def settle(self, ended: Ended) -> bytes:
        """The JSON of the ended Response, kept if it is to be.

        Errors: ``RequestError`` ``response_store_capacity_exceeded``.
        """
        status = _STATUS[ended.reason]
        wire = self._object(status, self.output.items, usage=_usage_object(ended.usage))
        body = msgspec.json.encode(wire)
        if self._request.store:
            parent = self._request.parent
            context = Context(
                None if parent is None else parent.context,
                msgspec.json.encode([item.wire for item in self._request.items]),
                msgspec.json.encode(self.output.items),
            )
            self._store.add(StoredResponse(self._id, body, context, self._request.preserve_thinking))
        return body

    def _object(
        self,
        status: str,
        output: list[dict[str, Any]],
        *,
        usage: dict[str, Any] | None = None,
        error: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            "background": False,
            "completed_at": int(self._clock()) if status == "completed" else None,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": output,
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "usage": usage,
            **self._request.echo,
        }


def _usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
