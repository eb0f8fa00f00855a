"""``ninfer-serve``: options in, a serving process until it is told to stop.

Owns the order of a start: the engine process first, since it takes longest, and everything else while it
loads. Nothing heavy is imported before the options are known to be right.
"""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import ninfer
from ninfer.cli.engine_options import engine_settings
from ninfer.cli.parser import run
from ninfer.engine.host import EngineProcess
from ninfer.server import log
from ninfer.server.listen import bind, url

if TYPE_CHECKING:
    from ninfer.server.transport import TransportLimits

_log = logging.getLogger("ninfer.server")
_EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """The console script; the exit status."""
    return run("ninfer-serve", argv, serve)


def serve(
    options: Mapping[str, Any],
    engine: Mapping[str, Any] | None = None,
    limits: TransportLimits | None = None,
) -> int:
    """Serve until SIGTERM or Ctrl+C; 0 after a clean stop.

    ``engine`` overrides members of the engine's settings and ``limits`` the transport's (tests).
    Errors: ``OptionError``, ``ArtifactError``, ``EngineError`` when the start fails.
    """
    started = time.monotonic()
    log.configure(options["log_level"])
    artifact = _artifact(options)
    _log.info("ninfer %s, artifact %s", ninfer.__version__, artifact)
    settings = engine_settings(options, artifact)
    sock = bind(options["host"], options["port"])
    host = EngineProcess(msgspec.structs.replace(settings, **(engine or {})))
    try:
        _serve(options, artifact, host, sock, limits, started)
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    finally:
        host.close()
        sock.close()
    _log.info("server stopped")
    return 0


def _serve(
    options: Mapping[str, Any],
    artifact: Path,
    host: EngineProcess,
    sock: socket.socket,
    limits: TransportLimits | None,
    started: float,
) -> None:
    # Imported while the engine process loads: together they take a second.
    from ninfer.server.app import build_app
    from ninfer.server.assemble import build_services, open_model

    services = build_services(options, open_model(options, artifact), host, limits)
    ready = host.wait_ready()
    _log.info("engine=%s loaded in %.1f s", ready.engine, ready.load_s)
    app = build_app(services)

    async def announce(*_: object) -> None:
        where = url(options["host"], sock.getsockname()[1])
        _log.info("ready after %.1f s", time.monotonic() - started)
        _log.info("listening on %s", where)

    app.register_listener(announce, "after_server_start")
    backlog = services.limits.listen_backlog
    app.run(sock=sock, single_process=True, motd=False, access_log=False, backlog=backlog)


def _artifact(options: Mapping[str, Any]) -> Path:
    if options["artifact"] is not None:
        return Path(options["artifact"])
    from ninfer import bundled

    return bundled.path()


if __name__ == "__main__":
    sys.exit(main())
