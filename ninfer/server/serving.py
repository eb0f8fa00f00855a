"""Runs an application on a bound socket until it is told to stop; the order of the end is ours.

Sanic's own runner goes on accepting connections while requests are ended. Here the socket closes first, then
every request ends, then connections drain.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import uvloop
from sanic.server.async_server import AsyncioServer

from ninfer.server.app import SanicApp
from ninfer.server.stopping import StopSwitch

_DRAIN_POLL_S = 0.05


def serve_until_stopped(
    app: SanicApp,
    sock: socket.socket,
    backlog: int,
    switch: Callable[[], StopSwitch],
    ready: Callable[[], None],
) -> None:
    """Serve; ``ready`` is called once requests are answered. ``switch`` makes the stop on the loop."""
    # On a terminal Sanic would warn that it is not in its debug mode.
    os.environ.setdefault("SANIC_IGNORE_PRODUCTION_WARNING", "1")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(app, sock, backlog, switch, ready))


async def _serve(
    app: SanicApp,
    sock: socket.socket,
    backlog: int,
    switch: Callable[[], StopSwitch],
    ready: Callable[[], None],
) -> None:
    stop = switch()
    server = await app.create_server(sock=sock, backlog=backlog, return_asyncio_server=True)
    assert server is not None
    await server.startup()  # type: ignore[no-untyped-call]
    await server.before_start()  # type: ignore[no-untyped-call]
    stop.install()
    ready()
    await server.after_start()  # type: ignore[no-untyped-call]
    await stop.requested.wait()
    await end(app, server)


async def end(app: SanicApp, server: AsyncioServer) -> None:
    """No new connection, then no request, then no connection but those that take too long to drain."""
    assert server.server is not None
    server.server.close()
    await server.before_stop()
    deadline = asyncio.get_running_loop().time() + app.config.GRACEFUL_SHUTDOWN_TIMEOUT
    while server.connections and asyncio.get_running_loop().time() < deadline:
        for connection in list(server.connections):
            connection.close_if_idle()
        await asyncio.sleep(_DRAIN_POLL_S)
    for connection in list(server.connections):
        connection.abort()
    await asyncio.sleep(0)  # what was cut off says so to its handler
    await server.after_stop()
