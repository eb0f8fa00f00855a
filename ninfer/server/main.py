"""``ninfer-serve``: options in, a serving process until it is told to stop.

Owns the order of a start: the engine process first, since it takes longest, and everything else while it
loads. Nothing heavy is imported before the options are known to be right.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

import ninfer
from ninfer import collector
from ninfer.cli.engine_options import engine_settings
from ninfer.cli.parser import run
from ninfer.engine.events import LoadProgress
from ninfer.engine.host import EngineProcess, exit_on_fatal
from ninfer.server import log
from ninfer.server.listen import bind, url
from ninfer.server.stopping import StopSwitch

if TYPE_CHECKING:
    from ninfer.server.observe.console import Console
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
    """Serve until SIGTERM, or Ctrl+C twice; 0 after a clean stop.

    ``engine`` overrides members of the engine's settings and ``limits`` the transport's (tests).
    Errors: ``OptionError``, ``ArtifactError``, ``EngineError`` when the start fails.
    """
    started = time.monotonic()
    interruption = _Interruption()
    console = log.configure(options["log_level"], colours=options["log_colours"])
    artifact = _artifact(options)
    _log.info("ninfer %s, artifact %s", ninfer.__version__, artifact)
    settings = engine_settings(options, artifact)
    sock = bind(options["host"], options["port"])
    settings = msgspec.structs.replace(settings, **(engine or {}))
    shown = log.shows_statistics(options["log_level"])
    host = EngineProcess(
        settings,
        on_fatal=_fatal(console),
        on_progress=_progress_line(console) if console.interactive and shown else None,
    )
    try:
        _serve(options, artifact, host, sock, limits, console, started, interruption)
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    finally:
        console.say(None)
        host.close()
        sock.close()
        interruption.close()
    _log.info("server stopped")
    console.close()
    return 0


def _serve(
    options: Mapping[str, Any],
    artifact: Path,
    host: EngineProcess,
    sock: socket.socket,
    limits: TransportLimits | None,
    console: Console,
    started: float,
    interruption: _Interruption,
) -> None:
    # Imported while the engine process loads: together they take a second.
    from ninfer.server.app import build_app
    from ninfer.server.assemble import build_services, open_model
    from ninfer.server.serving import serve_until_stopped

    services = build_services(options, open_model(options, artifact), host, limits, console)
    interruption.check()
    ready = host.wait_ready()
    console.say(None)
    _log.info("engine=%s loaded in %.1f s", ready.engine, ready.load_s)

    def announce() -> None:
        where = url(options["host"], sock.getsockname()[1])
        _log.info("ready after %.1f s", time.monotonic() - started)
        _log.info("listening on %s", where)

    def leave() -> None:
        console.close()
        os._exit(_EXIT_INTERRUPTED)

    app = build_app(services)
    collector.set_aside()
    serve_until_stopped(
        app,
        sock,
        services.limits.listen_backlog,
        lambda: StopSwitch(console, saves=options["prefix_cache_file"] is not None, leave=leave),
        announce,
    )


class _Interruption:
    """Ctrl+C before readiness, wherever it arrives.

    Python drops an exception that a signal raises inside a callback, as imports run them: the press is
    remembered too.
    """

    def __init__(self) -> None:
        self._seen = False
        self._main = threading.current_thread() is threading.main_thread()
        self._before = signal.signal(signal.SIGINT, self._note) if self._main else None

    def check(self) -> None:
        """Errors: ``KeyboardInterrupt`` after a press."""
        if self._seen:
            raise KeyboardInterrupt

    def close(self) -> None:
        """Leave presses to whoever had them before."""
        if self._main:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._seen = True
        raise KeyboardInterrupt


def _fatal(console: Console) -> Callable[[str], None]:
    """The end after a device error: its line stands below the panel."""

    def end(message: str) -> None:
        console.close()
        exit_on_fatal(message)

    return end


def _progress_line(console: Console) -> Callable[[LoadProgress], None]:
    """Loading as one line of the terminal that is written again and again."""
    return lambda progress: console.say(
        f"loading weights: {100 * progress.loaded // max(progress.total, 1)}%"
    )


def _artifact(options: Mapping[str, Any]) -> Path:
    if options["artifact"] is not None:
        return Path(options["artifact"])
    from ninfer import bundled

    return bundled.path()


if __name__ == "__main__":
    sys.exit(main())
