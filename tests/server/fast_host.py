"""The fast engine behind a server of the test's own process: real options, worker and kernels.

The program between them can be held, slowed and broken by a test.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from conformance.http.client import Client
from ninfer.cli.engine_options import engine_settings
from ninfer.cli.parser import parse
from ninfer.engine.events import Delta, EngineEvent, LogRecord, RequestEvent
from ninfer.engine.inprocess import InProcessHost
from ninfer.engine.interface import EventSink
from ninfer.engine.outlet import Outlet
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.settings import EngineSettings
from ninfer.fast import start
from ninfer.fast.memory.lanes import Lane
from ninfer.fast.program.program import Program, Row, Tokens
from ninfer.fast.program.verify import Block
from tests.server.conftest import MODEL
from tests.server.inprocess import serving_host

HELD_S = 60.0


class ProbedProgram(Program):
    """A program whose units pass a gate (``going``) and a hook (``before``, given the unit's kind).

    The hook may sleep or raise; ``units`` has the kind and the rows of each unit that ran.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.going = threading.Event()
        self.going.set()
        self.before: Callable[[str], None] = lambda kind: None
        self.units: list[tuple[str, int]] = []

    @property
    def rounds(self) -> list[int]:
        """Rows of each round."""
        return [rows for kind, rows in self.units if kind == "round"]

    def prefill(self, lane: Lane, tokens: Tokens, axes: Tokens) -> Any:
        self._enter("prefill", 1)
        return super().prefill(lane, tokens, axes)

    def round(self, rows: Sequence[Row]) -> list[int]:
        self._enter("round", len(rows))
        return super().round(rows)

    def verify(self, blocks: Sequence[Block]) -> list[Tokens]:
        self._enter("round", len(blocks))
        return super().verify(blocks)

    def _enter(self, kind: str, rows: int) -> None:
        assert self.going.wait(HELD_S), "a test held the engine and left it"
        self.before(kind)
        self.units.append((kind, rows))


class FastHost(InProcessHost):
    """An ``EngineHost`` over the fast worker in a thread. ``published`` has every event, in order.

    ``submitted`` counts requests. ``endless`` ones are not ended by stop tokens, which a random model draws
    at any time.
    """

    def __init__(self, settings: EngineSettings, endless: bool) -> None:
        self._outlet = Outlet()
        self._endless = endless
        self.submitted = 0
        self.published: list[EngineEvent] = []
        with patch.object(start, "Program", ProbedProgram):
            worker = start.open_worker(settings, lambda loaded, total: None, self._publish)
        assert isinstance(worker._program, ProbedProgram)
        self.program = worker._program
        self._worker = worker
        self._thread = threading.Thread(target=self._run, name="ninfer-engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest, sink: EventSink) -> None:
        self.submitted += 1
        endless = self._endless or request.ignore_stop_tokens
        super().submit(msgspec.structs.replace(request, ignore_stop_tokens=endless), sink)

    def close(self) -> None:
        self.program.going.set()
        super().close()
        self.program.close()

    def _publish(self, event: EngineEvent) -> None:
        self.published.append(event)
        super()._publish(event)

    @property
    def records(self) -> list[str]:
        return [event.message for event in self.published if isinstance(event, LogRecord)]

    @property
    def ledger(self) -> str:
        """The line of the start that says what the engine holds."""
        (line,) = (record for record in self.records if record.startswith("memory_mib "))
        return line

    def count(self, kind: type[RequestEvent]) -> int:
        return sum(isinstance(event, kind) for event in self.published)

    def token_ids(self, request_id: str) -> list[int]:
        """What was committed for the request whose answer has this id."""
        deltas = (event for event in self.published if isinstance(event, Delta) and event.id == request_id)
        return [token for delta in deltas for token in delta.token_ids]


@contextmanager
def serving_fast(
    artifact: Path,
    arguments: Sequence[str] = (),
    *,
    limits: Mapping[str, float] | None = None,
    endless: bool = True,
    **settings: Any,
) -> Iterator[tuple[Client, FastHost]]:
    """Serve ``artifact`` as ``ninfer-serve`` with ``arguments`` would; ``settings`` override the engine's."""
    options = parse("ninfer-serve", [str(artifact), *arguments])
    chosen = msgspec.structs.replace(engine_settings(options, artifact), threads=1, **settings)
    host = FastHost(chosen, endless)
    with serving_host(artifact, host, ("--port", "0", *MODEL, *arguments), limits=limits) as client:
        yield client, host
