"""``GET /health``: whether the engine can accept work. Temporary overload does not change it."""

from __future__ import annotations

from sanic import HTTPResponse
from sanic.request import Request

from ninfer.server.generation import Services


async def health(request: Request) -> HTTPResponse:
    services: Services = request.app.ctx.services
    if services.host.available:
        return HTTPResponse(b'{"status":"ok"}', content_type="application/json")
    return HTTPResponse(b'{"status":"unavailable"}', status=503, content_type="application/json")
