"""``ninfer-serve``: options in, a serving process until it is told to stop.

Owns the order of a start: the engine process first, since it takes longest, and everything else while it
loads. Nothing heavy is imported before the options are known to be right.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import ninfer
from ninfer.cli.parser import run
from ninfer.engine.host import EngineProcess
from ninfer.engine.settings import EngineSettings
from ninfer.server import log
from ninfer.server.listen import bind, url

if TYPE_CHECKING:
    from ninfer.server.generation import Services
    from ninfer.server.served_model import ServedModel
    from ninfer.server.transport import TransportLimits

_log = logging.getLogger("ninfer.server")
_EXIT_INTERRUPTED = 130
_PREPARATION_THREADS = 4


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
    log.configure(options["log_level"])
    started = time.monotonic()
    artifact = _artifact(options)
    settings = EngineSettings(options["engine"], str(artifact), options["max_context"])
    sock = bind(options["host"], options["port"])
    host = EngineProcess(msgspec.structs.replace(settings, **(engine or {})))
    try:
        return _serve(options, artifact, host, sock, limits, started)
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    finally:
        host.close()
        sock.close()


def _serve(
    options: Mapping[str, Any],
    artifact: Path,
    host: EngineProcess,
    sock: socket.socket,
    limits: TransportLimits | None,
    started: float,
) -> int:
    # Imported while the engine process loads: together they take a second.
    from ninfer.server.app import build_app
    from ninfer.server.transport import transport_limits

    _log.info("ninfer %s, artifact %s", ninfer.__version__, artifact)
    model = _open_model(options, artifact)
    ready = host.wait_ready()
    _log.info("engine=%s loaded in %.1f s", ready.engine, ready.load_s)
    services = _services(options, model, host, limits or transport_limits())
    app = build_app(services)

    async def announce(*_: object) -> None:
        where = url(options["host"], sock.getsockname()[1])
        _log.info("ready after %.1f s; listening on %s", time.monotonic() - started, where)

    app.register_listener(announce, "after_server_start")
    app.run(
        sock=sock, single_process=True, motd=False, access_log=False, backlog=services.limits.listen_backlog
    )
    _log.info("server stopped")
    return 0


def _artifact(options: Mapping[str, Any]) -> Path:
    if options["artifact"] is not None:
        return Path(options["artifact"])
    from ninfer import bundled

    return bundled.path()


def _open_model(options: Mapping[str, Any], artifact: Path) -> ServedModel:
    from ninfer.prompt.conversation import TemplateOptions
    from ninfer.server.served_model import ModelChoices, open_served_model

    template = options["chat_template"]
    choices = ModelChoices(
        model_id=options["model_id"],
        chat_template=None if template is None else Path(template),
        max_context=options["max_context"],
        template_defaults=TemplateOptions(
            enable_thinking=False if options["no_thinking"] else None,
            preserve_thinking=True if options["preserve_thinking"] else None,
        ),
        demonstration=options["artifact"] is None,
    )
    model = open_served_model(artifact, choices)
    _log.info(
        "model=%s parameters=%d format=%s payload=%.1f MiB max_context=%d",
        model.public_id,
        model.weights.parameters,
        model.weights.dominant_format,
        model.weights.payload_bytes / 2**20,
        model.max_context,
    )
    if model.warning is not None:
        _log.warning(model.warning)
    return model


def _services(
    options: Mapping[str, Any], model: ServedModel, host: EngineProcess, limits: TransportLimits
) -> Services:
    from ninfer.server.generation import Services
    from ninfer.server.outstanding import Outstanding
    from ninfer.server.resolution import generation_defaults

    return Services(
        model=model,
        defaults=generation_defaults(options, options["default_max_tokens"]),
        host=host,
        outstanding=Outstanding(options["max_concurrency"] + options["max_pending_requests"]),
        workers=ThreadPoolExecutor(_PREPARATION_THREADS, thread_name_prefix="ninfer-prepare"),
        limits=limits,
        max_request_bytes=options["max_request_mib"] * 2**20,
    )
