"""The routes that read a Responses body: ``POST /v1/responses`` and its token count."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from sanic import HTTPResponse
from sanic.request import Request

from ninfer.errors import RequestError
from ninfer.server.answer.exchange import collected, exchanging, preparing
from ninfer.server.answer.streaming import stream
from ninfer.server.generation import Services
from ninfer.server.responses.answer import Answer
from ninfer.server.responses.items import new_id
from ninfer.server.responses.request import ResponsesRequest, read_responses_request
from ninfer.server.responses.stream import StreamedResponse
from ninfer.server.served_model import require_model
from ninfer.server.transport import send_whole

# Where the prompt and its options stand in a body of this protocol.
_PARAMS = {
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "max_tokens": "max_output_tokens",
}


async def create_response(request: Request) -> None:
    """Answer one body, whole or as a stream."""
    services: Services = request.app.ctx.services

    def read(members: Mapping[str, Any]) -> ResponsesRequest:
        asked = _read(services, members)
        if asked.store:
            services.responses.require_room()
        return asked

    with _own_params():
        async with exchanging(request, read, functools.partial(new_id, "response"), _own) as exchange:
            prepared = exchange.prepared
            answer = Answer(prepared.id, prepared.request, prepared.generation.sampling, services.responses)
            if prepared.request.stream:
                unkept = exchange.observation.response_failed
                await stream(request, exchange, StreamedResponse(answer, unkept))
                return
            body = answer.whole(await collected(exchange))
            await send_whole(request, HTTPResponse(body, content_type="application/json"), services.limits)


async def count_input_tokens(request: Request) -> None:
    """How long the prompt of a body would be; nothing is generated or stored."""
    services: Services = request.app.ctx.services

    def count(members: Mapping[str, Any]) -> int:
        asked = _read(services, members)
        return services.model.preparer.prepare(asked.ask.conversation).token_count

    with _own_params():
        async with preparing(request, services.counting, count) as tokens:
            body = msgspec.json.encode({"object": "response.input_tokens", "input_tokens": tokens})
            await send_whole(request, HTTPResponse(body, content_type="application/json"), services.limits)


def _read(services: Services, members: Mapping[str, Any]) -> ResponsesRequest:
    asked = read_responses_request(members, services.responses)
    require_model(services.model, asked.model)
    return asked


@contextmanager
def _own_params() -> Iterator[None]:
    """Errors of shared steps name the member that this protocol has for it."""
    try:
        yield
    except RequestError as error:
        own = _own(error)
        if own is error:
            raise
        raise own from error


def _own(error: RequestError) -> RequestError:
    """The same error, said of the member that this protocol has."""
    param = "" if error.code == "unknown_parameter" else error.param or ""
    name = param.partition("[")[0]
    if name not in _PARAMS:
        return error
    own = _PARAMS[name] if name == "messages" else _PARAMS[name] + param.removeprefix(name)
    return RequestError(error.code, error.message.replace(param, own, 1), own)
