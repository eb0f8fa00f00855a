"""Writes one server-sent event stream.

Owns framing, comments and the deadline of a reader that takes nothing; knows nothing of what events mean.
"""

from __future__ import annotations

import asyncio
import logging

from sanic.request import Request

from ninfer.server.transport import TransportLimits, connection

_log = logging.getLogger("ninfer.server")
_HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would hold events back
}


class SseWriter:
    """The answer to ``request`` as a stream; the status line goes out with the first event or comment."""

    def __init__(self, request: Request, limits: TransportLimits) -> None:
        self._request = request
        self._limits = limits

    async def open(self) -> None:
        """Decide for a 200 stream; after this no status can be sent."""
        self._response = await self._request.respond(content_type="text/event-stream", headers=_HEADERS)

    async def data(self, payload: bytes) -> None:
        """One unnamed event; ``payload`` is one line."""
        await self._send(b"data: " + payload + b"\n\n")

    async def comment(self) -> None:
        """The comment that keeps a silent stream alive."""
        await self._send(f": {self._limits.stream_comment}\n\n".encode())

    async def close(self, *, keep_connection: bool = True) -> None:
        if not keep_connection:
            connection(self._request).keep_alive = False
        await self._response.eof()

    async def _send(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._limits.send_timeout_s):
                await self._response.send(data)
        except TimeoutError:
            _log.info("a stream's reader took nothing for %g s", self._limits.send_timeout_s)
            connection(self._request).protocol.abort()  # type: ignore[no-untyped-call]
            # The connection is gone: what follows is the same as a client that left.
            raise asyncio.CancelledError from None
