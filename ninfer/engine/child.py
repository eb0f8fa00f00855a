"""The engine process: ``python -m ninfer.engine.child FD``.

Reads its settings from the socket, loads the chosen engine, then serves commands until the parent asks it
to stop or is gone. The main thread computes; one more thread reads commands.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import msgspec

from ninfer.engine.events import Fatal, LoadProgress, LogRecord, Ready, StartFailed
from ninfer.engine.frames import FrameError, FrameReader, FrameWriter
from ninfer.engine.interface import SerialEngine
from ninfer.engine.requests import CancelRequest, Command, GenerationRequest
from ninfer.engine.settings import EngineSettings
from ninfer.engine.worker import DeviceLost, SerialWorker
from ninfer.errors import NinferError

# An engine is imported by name, so that this module (and the server that shares its package) imports none.
ENGINES = {
    "reference": "ninfer.reference.engine",
    "scripted": "ninfer.engine.scripted",
}
EXIT_FAILED = 1
_REPORT_S = 1.0


def open_engine(settings: EngineSettings, listener: Callable[[int, int], None]) -> SerialEngine:
    """The engine that ``settings.engine`` names; ``listener`` hears elements loaded and in all.

    Errors: whatever its ``open_engine`` raises.
    """
    module = importlib.import_module(ENGINES[settings.engine])
    engine: SerialEngine = module.open_engine(settings, listener)
    return engine


class Child:
    """One engine process from the first frame to its end."""

    def __init__(self, sock: socket.socket) -> None:
        self._reader = FrameReader(sock)
        self._writer = FrameWriter(sock)
        self._reported_at = time.monotonic()

    def run(self) -> NoReturn:
        settings = self._reader.receive(msgspec.msgpack.Decoder(EngineSettings))
        if settings is None:
            _leave(0)
        commands = _Commands(self._reader)
        threading.Thread(target=commands.read, name="ninfer-engine-intake", daemon=True).start()
        try:
            self._serve(settings, commands)
        except OSError:  # the parent is gone: nobody is left to tell
            _leave(0)
        _leave(EXIT_FAILED)

    def _serve(self, settings: EngineSettings, commands: _Commands) -> None:
        engine, load_s = self._load(settings)
        worker = SerialWorker(engine, self._writer.send)
        commands.attach(worker)
        self._writer.send(Ready(engine.name, load_s))
        try:
            worker.run()
        except DeviceLost as error:
            self._writer.send(Fatal(str(error)))
        except OSError:
            raise
        except Exception as error:
            self._writer.send(LogRecord("critical", f"worker crash: {error!r}"))

    def _load(self, settings: EngineSettings) -> tuple[SerialEngine, float]:
        started = time.monotonic()
        try:
            engine = open_engine(settings, self._report_load)
        except Exception as error:
            reason = str(error) if isinstance(error, NinferError) else f"{type(error).__name__}: {error}"
            self._writer.send(StartFailed(reason))
            _leave(EXIT_FAILED)
        return engine, time.monotonic() - started

    def _report_load(self, loaded: int, total: int) -> None:
        """At most one record per ``_REPORT_S``: a listener is called for each tensor."""
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_S:
            self._reported_at = now
            self._writer.send(LoadProgress(loaded, total))


class _Commands:
    """Reads the parent's commands; they wait for the worker while the engine loads."""

    def __init__(self, reader: FrameReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._early: list[GenerationRequest | CancelRequest] = []
        self._worker: SerialWorker | None = None

    def attach(self, worker: SerialWorker) -> None:
        with self._lock:
            self._worker = worker
            for command in self._early:
                _apply(command, worker)

    def read(self) -> NoReturn:
        """Until the parent's end closes or says ``Shutdown``; both end the process at once, mid-load too."""
        decoder = msgspec.msgpack.Decoder(Command)
        try:
            while isinstance(command := self._reader.receive(decoder), GenerationRequest | CancelRequest):
                with self._lock:
                    if self._worker is None:
                        self._early.append(command)
                    else:
                        _apply(command, self._worker)
        except FrameError as error:
            print(f"engine: the command stream broke: {error}", file=sys.stderr)
            _leave(EXIT_FAILED)
        _leave(0)


def _apply(command: GenerationRequest | CancelRequest, worker: SerialWorker) -> None:
    if isinstance(command, GenerationRequest):
        worker.submit(command)
    else:
        worker.cancel(command.id)


def _leave(status: int) -> NoReturn:
    """End the process from any thread, whatever the others compute."""
    sys.stderr.flush()
    os._exit(status)


def main() -> NoReturn:
    # The parent coordinates every stop: a terminal's Ctrl+C and a service manager's SIGTERM reach both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Child(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
