"""The route ``POST /v1/chat/completions``: a chat body in, an answer whole or as a stream out."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

from sanic import HTTPResponse
from sanic.request import Request

from ninfer.server.answer.exchange import collected, exchanging
from ninfer.server.answer.streaming import stream
from ninfer.server.chat.answers import ChatIdentity, whole_answer
from ninfer.server.chat.request import ChatRequest, read_chat_request
from ninfer.server.chat.stream import StreamChoices, StreamedChat
from ninfer.server.generation import Services
from ninfer.server.served_model import require_model
from ninfer.server.transport import send_whole


async def chat_completions(request: Request) -> None:
    """Answer one chat request."""
    services: Services = request.app.ctx.services

    def read(members: Mapping[str, Any]) -> ChatRequest:
        asked = read_chat_request(members)
        require_model(services.model, asked.model)
        return asked

    async with exchanging(request, read, new_id) as exchange:
        asked = exchange.request
        identity = ChatIdentity(exchange.prepared.id, asked.model, int(time.time()))
        if asked.stream:
            choices = StreamChoices(
                asked.include_usage,
                services.usage_chunk_choice,
                asked.timings_per_token,
                asked.return_progress,
            )
            await stream(request, exchange, StreamedChat(identity, choices))
            return
        body = whole_answer(identity, await collected(exchange))
        await send_whole(request, HTTPResponse(body, content_type="application/json"), services.limits)


def new_id() -> str:
    return f"chatcmpl-{uuid.uuid4().hex}"
