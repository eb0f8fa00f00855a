"""The routes of Anthropic Messages: a message whole or as a stream, and the count of a prompt's tokens."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import msgspec
from sanic import HTTPResponse
from sanic.request import Request

from ninfer.server.answer.exchange import collected, exchanging, preparing
from ninfer.server.answer.streaming import stream
from ninfer.server.envelopes import request_id
from ninfer.server.generation import Services
from ninfer.server.messages.answers import MessageIdentity, whole_message
from ninfer.server.messages.request import read_count_request, read_messages_request
from ninfer.server.messages.stream import StreamedMessage
from ninfer.server.transport import send_whole


async def create_message(request: Request) -> None:
    """Answer one Messages request."""
    services: Services = request.app.ctx.services
    async with exchanging(request, read_messages_request, new_id) as exchange:
        asked = exchange.request
        identity = MessageIdentity(exchange.prepared.id, asked.model, asked.omitted)
        if asked.stream:
            await stream(request, exchange, StreamedMessage(identity, request_id(request)))
            return
        body = whole_message(identity, await collected(exchange))
        await send_whole(request, HTTPResponse(body, content_type="application/json"), services.limits)


async def count_message_tokens(request: Request) -> None:
    """Count one body's prompt tokens; needs no free lane."""
    services: Services = request.app.ctx.services

    def count(members: Mapping[str, Any]) -> int:
        return services.model.preparer.prepare(read_count_request(members)).token_count

    async with preparing(request, services.counting, count) as tokens:
        body = msgspec.json.encode({"input_tokens": tokens})
        await send_whole(request, HTTPResponse(body, content_type="application/json"), services.limits)


def new_id() -> str:
    return f"msg_{uuid.uuid4().hex}"
