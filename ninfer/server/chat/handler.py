"""The route ``POST /v1/chat/completions``.

Owns the way of one request through the server: slot, body, preparation off the event loop, generation,
answer. Errors before the first byte of an answer are statuses, later ones an event in the stream.
"""

from __future__ import annotations

import functools
import time
import uuid
from dataclasses import dataclass

from sanic import HTTPResponse
from sanic.request import Request

from ninfer.engine.events import Delta, Failed, Finished, RequestEvent, Started
from ninfer.engine.requests import GenerationRequest
from ninfer.server.chat.answers import ChatIdentity, StreamedAnswer, WholeAnswer
from ninfer.server.chat.request import ChatRequest, read_chat_request
from ninfer.server.errors import failure, wire_error
from ninfer.server.event_stream import EventStream
from ninfer.server.generation import Services
from ninfer.server.json_body import parse_object
from ninfer.server.resolution import resolve
from ninfer.server.served_model import require_model
from ninfer.server.sse import SseWriter
from ninfer.server.transport import read_body, send_whole


@dataclass(frozen=True, slots=True)
class _Call:
    identity: ChatIdentity
    request: ChatRequest
    generation: GenerationRequest


async def chat_completions(request: Request) -> None:
    """Answer one chat request; its slot is taken until the client has the answer."""
    services: Services = request.app.ctx.services
    slot = services.outstanding.take()
    try:
        body = await read_body(request, services.max_request_bytes, services.limits)
        call = await services.in_thread(slot, functools.partial(_prepare, services, body))
        async with services.generating(call.generation) as events:
            if call.request.stream:
                await _stream(request, services, call, events)
            else:
                await send_whole(request, await _whole(call, events), services.limits)
    finally:
        slot.release()


def _prepare(services: Services, body: bytes) -> _Call:
    """Everything between the body and the engine; runs in a worker thread."""
    request = read_chat_request(parse_object(body))
    require_model(services.model, request.model)
    prompt = services.model.preparer.prepare(request.conversation)
    identity = ChatIdentity(f"chatcmpl-{uuid.uuid4().hex}", request.model, int(time.time()))
    generation = resolve(services.model, services.defaults, identity.id, prompt, request.fields)
    return _Call(identity, request, generation)


async def _whole(call: _Call, events: EventStream) -> HTTPResponse:
    answer = WholeAnswer(call.identity)
    while True:
        event = await events.take()
        if isinstance(event, Delta):
            answer.add(event)
        elif isinstance(event, Failed):
            raise failure(event)
        elif isinstance(event, Finished):
            return HTTPResponse(answer.body(event), content_type="application/json")


async def _stream(request: Request, services: Services, call: _Call, events: EventStream) -> None:
    silence_s = services.limits.stream_comment_after_s
    first = await events.take(silence_s)
    if isinstance(first, Failed):
        raise failure(first)
    writer = SseWriter(request, services.limits)
    await writer.open()
    try:
        answer = StreamedAnswer(call.identity, call.request.include_usage)
        event: RequestEvent | None = first
        while True:
            if isinstance(event, Failed):
                raise failure(event)
            await _write(writer, answer, event)
            if isinstance(event, Finished):
                break
            event = await events.take(silence_s)
    except Exception as error:
        await writer.data(wire_error(error).body())
        await writer.close(keep_connection=False)
        return
    await writer.close()


async def _write(writer: SseWriter, answer: StreamedAnswer, event: RequestEvent | None) -> None:
    if event is None:
        await writer.comment()
    elif isinstance(event, Started):
        await writer.data(answer.role())
    elif isinstance(event, Delta) and event.text:  # an engine may end with token ids that have no text
        await writer.data(answer.delta(event))
    elif isinstance(event, Finished):
        for payload in answer.finish(event):
            await writer.data(payload)
