"""The transport's fixed limits, and the reading of a body and the sending of an answer under them.

Owns sizes and deadlines of bytes on the wire; numbers stand in ``spec/http/transport.yaml``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields

from sanic import HTTPResponse
from sanic.http import Http
from sanic.request import Request

from ninfer import spec
from ninfer.errors import RequestError

_log = logging.getLogger("ninfer.server")


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """The rows of ``spec/http/transport.yaml``; seconds and bytes."""

    header_timeout_s: float
    max_header_bytes: int
    body_idle_timeout_s: float
    body_timeout_s: float
    linger_bytes: int
    keep_alive_timeout_s: float
    stream_comment_after_s: float
    send_timeout_s: float
    graceful_stop_s: float
    listen_backlog: int
    request_id_header: str
    stream_comment: str


def transport_limits() -> TransportLimits:
    rows = spec.document("http/transport")
    return TransportLimits(**{field.name: rows[field.name] for field in fields(TransportLimits)})


async def read_body(request: Request, max_bytes: int, limits: TransportLimits) -> bytes:
    """The whole body. Errors: ``RequestError`` when it is too large, too slow or compressed.

    Only for routes with ``stream=True``: Sanic reads the others itself, without a deadline of its own.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        raise RequestError(
            "unsupported_encoding", f"Content-Encoding {encoding!r} is not supported; send the body as it is."
        )
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            return await _collect(request, max_bytes, limits.body_idle_timeout_s)
    except TimeoutError:
        _refuse_the_rest(request)
        raise RequestError("request_timeout", "The request body did not arrive in time.") from None


async def _collect(request: Request, max_bytes: int, idle_timeout_s: float) -> bytes:
    body = bytearray()
    stream = connection(request)
    while stream.request_body:
        async with asyncio.timeout(idle_timeout_s):
            piece = await stream.read()
        body += piece or b""
        if len(body) > max_bytes:
            stream.keep_alive = False
            raise _too_large(max_bytes)
    return bytes(body)


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(
        "request_too_large", f"The request body exceeds the server's limit of {max_bytes} bytes."
    )


def _refuse_the_rest(request: Request) -> None:
    """Close the connection after the answer instead of reading what the client still sends."""
    stream = connection(request)
    stream.keep_alive = False
    stream.request_max_size = 0


@asynccontextmanager
async def sending(request: Request, limits: TransportLimits) -> AsyncIterator[None]:
    """The deadline of a reader that takes nothing: its connection is cut and its handler cancelled."""
    try:
        async with asyncio.timeout(limits.send_timeout_s):
            yield
    except TimeoutError:
        _log.info("a reader took nothing for %g s", limits.send_timeout_s)
        connection(request).protocol.abort()  # type: ignore[no-untyped-call]
        # The connection is gone: what follows is the same as a client that left.
        raise asyncio.CancelledError from None


def may_write(request: Request) -> bool:
    """Whether the connection takes bytes at once; otherwise its reader has fallen behind."""
    writable: asyncio.Event = connection(request).protocol._can_write
    return writable.is_set()


async def send_whole(request: Request, response: HTTPResponse, limits: TransportLimits) -> None:
    """Send an answer from within its handler and wait until it is taken."""
    response = await request.respond(response)
    async with sending(request, limits):
        await response.send(end_stream=True)
        await taken(request)


async def taken(request: Request) -> None:
    """Return when the kernel has every byte that was sent: nothing of the answer is held any more."""
    protocol = connection(request).protocol
    transport = protocol.transport
    if transport is None or transport.is_closing():
        return
    transport.set_write_buffer_limits(high=0)  # a byte left makes ``_can_write`` wait
    await protocol._can_write.wait()
    if not transport.is_closing():
        transport.set_write_buffer_limits()


def connection(request: Request) -> Http:
    """The HTTP/1 state of the connection that ``request`` came on."""
    assert isinstance(request.stream, Http)
    return request.stream
