"""Builds the Sanic application over one engine host.

Owns Sanic's settings, the request id and the stop: what Sanic does by default and a server of long streams
must not do is switched off here, each with its reason.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from sanic import Sanic
from sanic.request import Request
from sanic.response import BaseHTTPResponse

from ninfer.server.envelopes import Envelopes, WireErrorHandler, request_id
from ninfer.server.generation import Services
from ninfer.server.routes import ENVELOPES, ROUTES, Route, allowed_methods, doubled_routes
from ninfer.server.transport import TransportLimits

SanicApp = Sanic[Any, Any]

# Sanic ends a silent request after this time; ours have their own deadlines (comments, sends, bodies).
_NEVER_S = 30 * 24 * 3600.0
_ENVELOPES = Envelopes(ENVELOPES)


def build_app(services: Services) -> SanicApp:
    """The application that answers for ``services``; stopping it closes the engine host."""
    app = Sanic(
        f"ninfer-{uuid.uuid4().hex}",  # names must be unique in a process
        env_prefix="",  # none: no environment variable changes a setting
        configure_logging=False,
        error_handler=WireErrorHandler(_ENVELOPES, allowed_methods),
    )
    app.config.update(_settings(services.limits, services.max_request_bytes))
    app.ctx.services = services
    app.ctx.envelopes = _ENVELOPES
    for route in (*ROUTES, *doubled_routes()):
        _register(app, route)
    app.register_middleware(services.access.admit, "request")
    app.register_middleware(_identify, "response")
    if services.access.cors:
        app.register_middleware(services.access.open_to_browsers, "response")
    app.register_listener(_begin, "before_server_start")
    app.register_listener(_watch, "after_server_start")
    app.register_listener(_end_requests, "before_server_stop")
    app.register_listener(_release, "after_server_stop")
    return app


def _settings(limits: TransportLimits, max_request_bytes: int) -> dict[str, object]:
    return {
        "REQUEST_TIMEOUT": limits.header_timeout_s,
        "RESPONSE_TIMEOUT": _NEVER_S,
        "KEEP_ALIVE_TIMEOUT": limits.keep_alive_timeout_s,
        "GRACEFUL_SHUTDOWN_TIMEOUT": limits.graceful_stop_s,
        # Handlers count bodies themselves; up to here Sanic reads on after an answer has refused one.
        "REQUEST_MAX_SIZE": max_request_bytes + limits.linger_bytes,
        "REQUEST_MAX_HEADER_SIZE": limits.max_header_bytes,
        "ACCESS_LOG": False,
        "MOTD": False,
        "AUTO_EXTEND": False,  # an installed sanic-ext would add routes of its own
        "FALLBACK_ERROR_FORMAT": "json",
    }


def _register(app: SanicApp, route: Route) -> None:
    name = f"{route.method} {route.path}".translate(str.maketrans(" /{}.", "_____"))
    app.route(
        route.pattern,
        methods=route.methods,
        name=name,
        stream=route.reads_body,
        ignore_body=not route.reads_body,
    )(route.handler)


def _identify(request: Request, response: BaseHTTPResponse) -> None:
    response.headers.setdefault(_ENVELOPES.of(request.path).request_id_header, request_id(request))


async def _begin(app: SanicApp) -> None:
    """The engine has loaded: records begin."""
    services: Services = app.ctx.services
    services.operations.begin()


async def _watch(app: SanicApp) -> None:
    """Requests are answered: intervals begin, and the panel appears."""
    services: Services = app.ctx.services
    services.operations.watch()


async def _end_requests(app: SanicApp) -> None:
    """End every request with ``service_unavailable``; their handlers answer while the server drains."""
    services: Services = app.ctx.services
    await asyncio.get_running_loop().run_in_executor(None, services.host.close)


async def _release(app: SanicApp) -> None:
    """Let the threads go and end the records, once no handler can need them."""
    services: Services = app.ctx.services
    services.workers.shutdown(wait=False, cancel_futures=True)
    services.operations.close()
