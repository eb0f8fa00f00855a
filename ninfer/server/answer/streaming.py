"""An adapter's frames as a stream of server-sent events: when it opens, how it stays alive, how it ends.

Owns the transport's side: the 200 goes out with the first event, or with the first comment when nothing comes
for too long; a failure before that is a status, after it the protocol's own error frames. What frames hold is
the adapter's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from sanic.request import Request

from ninfer.server.answer.exchange import Exchange, R
from ninfer.server.answer.pieces import Piece
from ninfer.server.errors import WireError, wire_error
from ninfer.server.sse import SseWriter


class StreamedAnswer(Protocol):
    """One protocol's stream; every frame is a whole event (``sse.unnamed``, ``sse.named``)."""

    def frames(self, piece: Piece) -> Iterable[bytes]:
        """The events that ``piece`` becomes; ``Ended`` brings the stream's last."""
        ...

    def failed(self, error: WireError) -> Iterable[bytes]:
        """The events that end a stream which has begun and cannot go on."""
        ...


async def stream(request: Request, exchange: Exchange[R], answer: StreamedAnswer) -> None:
    """Write the whole answer. Errors: ``RequestError``, ``EngineError`` before anything was sent."""
    limits = exchange.services.limits
    writer = SseWriter(request, limits)
    clock = asyncio.get_running_loop().time
    silent_at = clock() + limits.stream_comment_after_s
    try:
        while not exchange.ended:
            pieces = await exchange.take(max(silent_at - clock(), 0.0))
            if frames := b"".join([frame for piece in pieces for frame in answer.frames(piece)]):
                await writer.send(frames)
            elif clock() >= silent_at:
                await writer.comment()
            else:  # pieces that nobody sees, as the inside of a tool call, do not end a silence
                continue
            silent_at = clock() + limits.stream_comment_after_s
    except Exception as error:
        if not writer.opened:
            raise
        exchange.observation.response_failed()
        await writer.send(b"".join(answer.failed(wire_error(error))))
        await writer.close(keep_connection=False)
        return
    await writer.close()
