"""The parent's end of an engine process: starts it, sends commands, delivers its events.

Owns the child's life. The child (``child.py``) ends when this end of the socket pair closes, so a parent
that is killed leaves nothing behind; when the child ends, every request ends with ``engine_unavailable``.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

import ninfer
from ninfer.engine.events import (
    EngineEvent,
    Fatal,
    LoadProgress,
    LogRecord,
    Ready,
    RequestEvent,
    StartFailed,
)
from ninfer.engine.frames import FrameError, FrameReader, FrameWriter
from ninfer.engine.interface import EventSink
from ninfer.engine.outlet import Outlet
from ninfer.engine.requests import CancelRequest, Command, GenerationRequest, Shutdown
from ninfer.engine.settings import EngineSettings
from ninfer.engine.statistics import EngineResources, EngineStatistics
from ninfer.errors import EngineError

_log = logging.getLogger("ninfer.engine")
_CLOSE_S = 5.0
_STDERR = 2
# Threads that spin between parallel regions would take the cores of whoever computes next; some microseconds
# reach from one barrier of a product to the next (measured 2026-11-30: 125 prompt tokens in 14.2 ms, 15.5
# when every barrier sleeps).
_OPENMP = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}


def exit_on_fatal(message: str) -> None:
    """The contract's end after a device error: one line, then this process is gone."""
    print(f"CUDA_CHECK(...) failed: {message}", file=sys.stderr, flush=True)
    os._exit(1)


def log_progress(progress: LoadProgress) -> None:
    """A load that takes long says so, where nothing better shows it."""
    _log.info("loading weights: %d %%", 100 * progress.loaded // max(progress.total, 1))


class EngineProcess:
    """An ``EngineHost`` whose engine runs in its own process.

    The constructor starts the process and returns at once; ``wait_ready`` waits for the engine to load.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        on_fatal: Callable[[str], None] = exit_on_fatal,
        on_progress: Callable[[LoadProgress], None] | None = None,
    ) -> None:
        """Start loading; ``on_progress`` hears how far it is (None: a record each)."""
        self._on_progress = on_progress or log_progress
        self._on_fatal = on_fatal
        self._outlet = Outlet()
        self._started = threading.Event()
        self._ready: Ready | None = None
        self._statistics = EngineStatistics()
        self._start_error = "the engine process ended while it was starting"
        self._commands: queue.SimpleQueue[Command | EngineSettings | None] = queue.SimpleQueue()
        self._socket, self._process = _spawn()
        self._commands.put(settings)
        self._threads = [
            threading.Thread(target=target, name=f"ninfer-engine-{name}", daemon=True)
            for name, target in (("events", self._read_events), ("commands", self._write_commands))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def available(self) -> bool:
        return self._ready is not None and not self._outlet.ended

    @property
    def statistics(self) -> EngineStatistics:
        return self._statistics

    @property
    def resources(self) -> EngineResources:
        return EngineResources() if self._ready is None else self._ready.resources

    def wait_ready(self, timeout: float | None = None) -> Ready:
        """Block until the engine has loaded. Errors: ``EngineError`` with the reason it could not."""
        self._started.wait(timeout)
        if self._ready is None:
            raise EngineError("engine_unavailable", self._start_error)
        return self._ready

    def submit(self, request: GenerationRequest, sink: EventSink) -> None:
        if self._outlet.register(request.id, sink):
            self._commands.put(request)

    def cancel(self, request_id: str) -> None:
        self._commands.put(CancelRequest(request_id))

    def close(self) -> None:
        """End every request with ``service_unavailable`` and the process; safe to repeat."""
        self._outlet.end_all("service_unavailable", "The server is stopping.")
        self._commands.put(Shutdown())
        self._commands.put(None)
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _write_commands(self) -> None:
        writer = FrameWriter(self._socket)
        while (command := self._commands.get()) is not None:
            try:
                writer.send(command)
            except OSError:  # the child is gone; the reading thread ends the requests
                return

    def _read_events(self) -> None:
        decoder = msgspec.msgpack.Decoder(EngineEvent)
        reader = FrameReader(self._socket)
        try:
            while (event := reader.receive(decoder)) is not None:
                self._receive(event)
        except FrameError as error:
            _log.error("the engine's event stream broke: %s", error)
            self._process.kill()
        except BaseException:  # a sink of ours failed: without a reader the child is of no use
            self._process.kill()
            raise
        finally:
            reader.close()
            self._commands.put(None)
            self._end()

    def _receive(self, event: EngineEvent) -> None:
        if isinstance(event, RequestEvent):
            self._outlet.deliver(event)
        elif isinstance(event, EngineStatistics):
            self._statistics = event
        elif isinstance(event, Ready):
            self._ready = event
            self._started.set()
        elif isinstance(event, LogRecord):
            _log.log(logging.getLevelNamesMapping()[event.level.upper()], "engine | %s", event.message)
        elif isinstance(event, LoadProgress):
            self._on_progress(event)
        elif isinstance(event, StartFailed):
            self._start_error = event.message
        elif isinstance(event, Fatal):
            self._on_fatal(event.message)

    def _end(self) -> None:
        code = self._process.wait()
        if self._ready is not None and not self._outlet.ended:
            _log.error("the engine process ended (exit status %d)", code)
        self._outlet.end_all("engine_unavailable", "The engine has ended; only a restart helps.")
        self._started.set()


def _spawn() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A child process and our end of the socket pair whose other end it inherits."""
    ours, theirs = socket.socketpair()
    # -P: a file named like a library in the working directory must not shadow it.
    command = [sys.executable, "-P", "-m", "ninfer.engine.child", str(theirs.fileno())]
    package_root = str(Path(ninfer.__file__).parents[1])
    path = os.pathsep.join(part for part in (package_root, os.environ.get("PYTHONPATH")) if part)
    try:
        process = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=_STDERR,  # standard output belongs to the answer of ``ninfer``
            env={**_OPENMP, **os.environ, "PYTHONPATH": path},
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return ours, process
