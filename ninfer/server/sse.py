"""Writes one server-sent event stream.

Owns framing and comments; knows nothing of what events mean.
"""

from __future__ import annotations

from sanic.request import Request

from ninfer.server.transport import TransportLimits, connection, may_write, sending, taken

_HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would hold events back
}


def unnamed(payload: bytes) -> bytes:
    """One event without a name; ``payload`` is one line."""
    return b"data: " + payload + b"\n\n"


def named(event: str, payload: bytes) -> bytes:
    """One event with a name; ``payload`` is one line."""
    return f"event: {event}\n".encode() + b"data: " + payload + b"\n\n"


class SseWriter:
    """The answer to ``request`` as a stream; the status line goes out with the first event or comment."""

    def __init__(self, request: Request, limits: TransportLimits) -> None:
        self._request = request
        self._limits = limits
        self.opened = False

    async def send(self, frames: bytes) -> None:
        """Whole events; the first ones decide for a 200, after which no status can be sent."""
        if not self.opened:
            self.opened = True
            self._response = await self._request.respond(content_type="text/event-stream", headers=_HEADERS)
        if may_write(self._request):  # nothing is waited for: no deadline is needed
            await self._response.send(frames)
            return
        async with sending(self._request, self._limits):
            await self._response.send(frames)

    async def comment(self) -> None:
        """The comment that keeps a silent stream alive."""
        await self.send(f": {self._limits.stream_comment}\n\n".encode())

    async def close(self, *, keep_connection: bool = True) -> None:
        """End the stream and wait until its reader has taken it."""
        if not keep_connection:
            connection(self._request).keep_alive = False
        async with sending(self._request, self._limits):
            await self._response.eof()
            await taken(self._request)
