"""A server in a thread of the test process: real options, real sockets, an engine that is loaded once.

For the many checks that need other options but not another process.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from conformance.http.client import Client
from ninfer.cli.parser import parse
from ninfer.engine.inprocess import InProcessHost
from ninfer.engine.interface import EngineHost, SerialEngine
from ninfer.server.app import build_app
from ninfer.server.assemble import build_services, open_model
from ninfer.server.listen import bind
from ninfer.server.serving import end
from ninfer.server.transport import transport_limits

# What connections that a test leaves open may hold up the end of its server.
DRAIN_S = 0.3


@contextmanager
def serving(
    artifact: Path,
    engine: SerialEngine,
    arguments: Sequence[str] = (),
    *,
    port: int | None = 0,
    limits: Mapping[str, float] | None = None,
) -> Iterator[Client]:
    """Serve ``artifact`` with ``arguments`` of ``ninfer-serve`` until the block ends.

    ``port`` None leaves the option out; ``limits`` override the transport's.
    """
    where = () if port is None else ("--port", str(port))
    with serving_host(artifact, InProcessHost(engine), (*where, *arguments), limits=limits) as client:
        yield client


@contextmanager
def serving_host(
    artifact: Path,
    host: EngineHost,
    arguments: Sequence[str],
    *,
    limits: Mapping[str, float] | None = None,
) -> Iterator[Client]:
    """As ``serving``, over any host, which is closed at the end; ``arguments`` name the port."""
    options = parse("ninfer-serve", [str(artifact), *arguments])
    merged = dataclasses.replace(transport_limits(), **(limits or {}))  # type: ignore[arg-type]
    app = build_app(build_services(options, open_model(options, artifact), host, merged))
    app.config.GRACEFUL_SHUTDOWN_TIMEOUT = DRAIN_S
    app.config.TOUCHUP = False  # Sanic rewrites its own methods, which works once in a process
    loop = asyncio.new_event_loop()
    sock = bind(options["host"], options["port"])
    started = threading.Event()

    async def serve() -> None:
        server = await app.create_server(sock=sock, return_asyncio_server=True)
        assert server is not None
        await server.startup()
        await server.before_start()
        await server.after_start()
        started.set()
        await stopping
        await end(app, server)

    stopping = loop.create_future()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="test-server")
    thread.start()
    try:
        assert started.wait(20)
        yield Client(f"http://127.0.0.1:{sock.getsockname()[1]}")
    finally:
        loop.call_soon_threadsafe(stopping.set_result, None)
        thread.join()
        loop.close()
        host.close()
