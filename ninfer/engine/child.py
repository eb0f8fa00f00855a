"""The engine process: ``python -m ninfer.engine.child FD``.

Reads its settings from the socket, loads the chosen engine, then serves commands until the parent asks it
to stop or is gone. The main thread computes; one more reads commands and one writes events.
"""

from __future__ import annotations

import importlib
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import msgspec

from ninfer import collector
from ninfer.engine.events import EngineEvent, Fatal, LoadProgress, LogRecord, Ready, StartFailed
from ninfer.engine.frames import FrameError, FrameReader, FrameWriter
from ninfer.engine.interface import Worker
from ninfer.engine.requests import CancelRequest, Command, GenerationRequest
from ninfer.engine.settings import EngineSettings
from ninfer.engine.worker import DeviceLost, SerialWorker
from ninfer.errors import NinferError

# An engine is imported by name, so that this module (and the server that shares its package) imports none.
# The first kind opens a ``SerialEngine``, which gets a queue; the second brings its own ``Worker``.
SERIAL_ENGINES = {
    "reference": "ninfer.reference.engine",
    "scripted": "ninfer.engine.scripted",
}
WORKERS = {"fast": "ninfer.fast.start"}
EXIT_FAILED = 1
_REPORT_S = 1.0
# Events that are written at once, at most.
_TOGETHER = 64


def open_worker(
    settings: EngineSettings,
    listener: Callable[[int, int], None],
    publish: Callable[[EngineEvent], None],
) -> Worker:
    """The engine that ``settings.engine`` names; ``listener`` hears what is loaded and in all.

    Errors: whatever opening it raises.
    """
    if settings.engine in WORKERS:
        module = importlib.import_module(WORKERS[settings.engine])
        worker: Worker = module.open_worker(settings, listener, publish)
        return worker
    module = importlib.import_module(SERIAL_ENGINES[settings.engine])
    return SerialWorker(module.open_engine(settings, listener), publish)


class Child:
    """One engine process from the first frame to its end."""

    def __init__(self, sock: socket.socket) -> None:
        self._reader = FrameReader(sock)
        self._sender = _Sender(FrameWriter(sock))
        self._reported_at = time.monotonic()

    def run(self) -> NoReturn:
        settings = self._reader.receive(msgspec.msgpack.Decoder(EngineSettings))
        if settings is None:
            _leave(0)
        commands = _Commands(self._reader, self._sender)
        threading.Thread(target=commands.read, name="ninfer-engine-intake", daemon=True).start()
        self._serve(settings, commands)
        self._leave_failed()

    def _serve(self, settings: EngineSettings, commands: _Commands) -> None:
        worker, load_s = self._load(settings)
        commands.attach(worker)
        self._sender.send(Ready(settings.engine, load_s, worker.resources))
        try:
            worker.run()
        except DeviceLost as error:
            # PyTorch adds lines of advice behind the error itself.
            self._sender.send(Fatal(str(error).partition("\n")[0]))
        except Exception as error:
            self._sender.send(LogRecord("critical", f"worker crash: {error!r}"))

    def _load(self, settings: EngineSettings) -> tuple[Worker, float]:
        started = time.monotonic()
        try:
            worker = open_worker(settings, self._report_load, self._sender.send)
        except Exception as error:
            reason = str(error) if isinstance(error, NinferError) else f"{type(error).__name__}: {error}"
            self._sender.send(StartFailed(reason))
            self._leave_failed()
        collector.set_aside()
        return worker, time.monotonic() - started

    def _report_load(self, loaded: int, total: int) -> None:
        """At most one record per ``_REPORT_S``: a listener is called for each tensor."""
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_S:
            self._reported_at = now
            self._sender.send(LoadProgress(loaded, total))

    def _leave_failed(self) -> NoReturn:
        self._sender.flush()
        _leave(EXIT_FAILED)


class _Sender:
    """Writes events on a thread of its own: encoding and a slow parent never hold up the next unit."""

    def __init__(self, writer: FrameWriter) -> None:
        self._writer = writer
        self._events: queue.SimpleQueue[EngineEvent | threading.Event] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ninfer-engine-outlet", daemon=True).start()

    def send(self, event: EngineEvent) -> None:
        self._events.put(event)

    def flush(self) -> None:
        """Return when everything sent so far is written."""
        written = threading.Event()
        self._events.put(written)
        written.wait()

    def _run(self) -> None:
        try:
            while True:
                self._write(self._waiting())
        except OSError:  # the parent is gone: nobody is left to tell
            _leave(0)
        except Exception as error:  # without this thread nobody would hear of anything again
            cause = error if isinstance(error, FrameError) else repr(error)
            print(f"engine: an event cannot be sent: {cause}", file=sys.stderr)
            _leave(EXIT_FAILED)

    def _waiting(self) -> list[EngineEvent | threading.Event]:
        """What is there, at least one: the events of one round go out together."""
        events = [self._events.get()]
        while len(events) < _TOGETHER and not self._events.empty():
            events.append(self._events.get())
        return events

    def _write(self, events: list[EngineEvent | threading.Event]) -> None:
        self._writer.send_all([event for event in events if not isinstance(event, threading.Event)])
        for event in events:
            if isinstance(event, threading.Event):
                event.set()


class _Commands:
    """Reads the parent's commands; they wait for the worker while the engine loads."""

    def __init__(self, reader: FrameReader, sender: _Sender) -> None:
        self._reader, self._sender = reader, sender
        self._lock = threading.Lock()
        self._early: list[GenerationRequest | CancelRequest] = []
        self._worker: Worker | None = None

    def attach(self, worker: Worker) -> None:
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
        except Exception as error:  # every later request would wait for ever
            self._sender.send(LogRecord("critical", f"intake crash: {error!r}"))
            self._sender.flush()
            _leave(EXIT_FAILED)
        _leave(0)


def _apply(command: GenerationRequest | CancelRequest, worker: Worker) -> None:
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
