"""The route ``GET /metrics``."""

from __future__ import annotations

from sanic import HTTPResponse
from sanic.request import Request

from ninfer.server.generation import Services
from ninfer.server.observe.metrics import content_type


async def metrics(request: Request) -> HTTPResponse:
    services: Services = request.app.ctx.services
    return HTTPResponse(services.operations.metrics.render(), headers={"content-type": content_type()})
