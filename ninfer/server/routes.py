"""Every route of the server: the list that the app registers and that tests hold against the OpenAPI file."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from sanic import HTTPResponse
from sanic.request import Request

from ninfer import spec
from ninfer.server.chat.handler import chat_completions
from ninfer.server.envelopes import Envelope
from ninfer.server.health import health
from ninfer.server.messages.envelope import ANTHROPIC
from ninfer.server.messages.handler import count_message_tokens, create_message
from ninfer.server.models import get_model, list_models
from ninfer.server.observe.route import metrics
from ninfer.server.responses.handler import count_input_tokens, create_response
from ninfer.server.responses.resources import (
    cancel_response,
    compact_response,
    delete_response,
    get_response,
    list_input_items,
)

Handler = Callable[..., Coroutine[Any, Any, HTTPResponse | None]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method and path. ``path`` is in OpenAPI's form; ``reads_body`` leaves the body to the handler."""

    method: str
    path: str
    handler: Handler
    reads_body: bool = False

    @property
    def methods(self) -> tuple[str, ...]:
        """What the route answers: a GET also without its body."""
        return ("GET", "HEAD") if self.method == "GET" else (self.method,)

    @property
    def pattern(self) -> str:
        """The path in Sanic's form. A model id may hold slashes, as Hugging Face names do."""
        return self.path.replace("{model_id}", "<model_id:path>").replace(
            "{response_id}", "<response_id:str>"
        )

    def matches(self, path: str) -> bool:
        """Whether ``path`` is one of this route's."""
        pattern = "".join(
            piece if index % 2 == 0 else ".+" if piece == "model_id" else "[^/]+"
            for index, piece in enumerate(re.split(r"\{(\w+)\}", self.path))
        )
        return re.fullmatch(pattern, path) is not None


async def openapi_document(request: Request) -> HTTPResponse:
    document: Any = spec.document("http/openapi")
    return HTTPResponse(msgspec.json.encode(document), content_type="application/json")


ROUTES = (
    Route("GET", "/health", health),
    Route("GET", "/metrics", metrics),
    Route("GET", "/openapi.json", openapi_document),
    Route("GET", "/v1/models", list_models),
    Route("GET", "/v1/models/{model_id}", get_model),
    Route("POST", "/v1/chat/completions", chat_completions, reads_body=True),
    Route("POST", "/v1/messages", create_message, reads_body=True),
    Route("POST", "/v1/messages/count_tokens", count_message_tokens, reads_body=True),
    Route("POST", "/v1/responses", create_response, reads_body=True),
    Route("POST", "/v1/responses/input_tokens", count_input_tokens, reads_body=True),
    Route("POST", "/v1/responses/compact", compact_response, reads_body=True),
    Route("GET", "/v1/responses/{response_id}", get_response),
    Route("DELETE", "/v1/responses/{response_id}", delete_response),
    Route("GET", "/v1/responses/{response_id}/input_items", list_input_items),
    Route("POST", "/v1/responses/{response_id}/cancel", cancel_response, reads_body=True),
)

# Routes whose errors are not written in OpenAI's way, by the beginning of their path.
ENVELOPES: Mapping[str, Envelope] = {"/v1/messages": ANTHROPIC}


def allowed_methods(path: str) -> list[str]:
    """The methods of a path, for ``Allow``: Sanic does not tell those of paths with parameters."""
    routes = (*ROUTES, *doubled_routes())
    found = [route for route in routes if route.path == path] or [
        route for route in routes if route.matches(path)
    ]
    return [method for route in found for method in route.methods]


def doubled_routes() -> Iterator[Route]:
    """Each route again behind ``/v1``, for clients whose base URL already ends in it; not ``/health``."""
    for route in ROUTES:
        if route.path != "/health":
            yield replace(route, path="/v1" + route.path)
