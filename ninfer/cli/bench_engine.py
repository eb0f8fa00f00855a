"""The engine that ``ninfer-bench`` measures: a worker on a thread of this process, opened by name.

Owns the requests' life and when each of their tokens came. One process, so that what is measured is the
engine and neither frames nor sockets.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from ninfer.cli.bench_plan import Ids
from ninfer.engine.child import open_worker
from ninfer.engine.events import Delta, EngineEvent, Failed, Finished, LogRecord, RequestEvent, Usage
from ninfer.engine.interface import Worker
from ninfer.engine.outlet import Outlet
from ninfer.engine.requests import GenerationRequest, SamplingParameters
from ninfer.engine.settings import EngineSettings
from ninfer.errors import EngineError

_GREEDY = SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 0.0, 0)
OpenWorker = Callable[[EngineSettings, Callable[[int, int], None], Callable[[EngineEvent], None]], Worker]


@dataclass(frozen=True, slots=True)
class Load:
    """What opening the engine took. ``ledger`` is the engine's account of its memory in MiB, by owner."""

    seconds: float
    weight_bytes: int
    ledger: dict[str, float]


@dataclass(slots=True)
class Outcome:
    """One finished request: when it was submitted (monotonic seconds), its usage, and its text's progress.

    ``arrivals`` are pairs of time and tokens published so far; text that is not whole yet comes later.
    """

    submitted_at: float
    usage: Usage | None = None
    failure: Failed | None = None
    arrivals: list[tuple[float, int]] = field(default_factory=list)


class BenchEngine:
    """Runs batches of requests, each to its full length. Use as a context manager."""

    def __init__(self, settings: EngineSettings, opener: OpenWorker = open_worker) -> None:
        """Load. Errors: whatever opening the engine raises."""
        self._outlet = Outlet()
        self._serial = 0
        self._ledger: dict[str, float] = {}
        self._loaded = 0
        began = time.monotonic()
        self._worker = opener(settings, self._note_loaded, self._publish)
        self.load = Load(time.monotonic() - began, self._loaded, self._ledger)
        self._thread = threading.Thread(target=self._serve, name="ninfer-bench-engine", daemon=True)

    def __enter__(self) -> BenchEngine:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.stop()
        self._thread.join()

    def run(self, prompts: Sequence[Ids], output_tokens: int) -> list[Outcome]:
        """Submit one greedy request per prompt at once and wait for all.

        Errors: ``EngineError`` when one fails.
        """
        batch = _Batch(len(prompts))
        for prompt in prompts:
            request = self._request(prompt, output_tokens)
            sink = batch.open()
            if self._outlet.register(request.id, sink):
                self._worker.submit(request)
        outcomes = batch.wait()
        for outcome in outcomes:
            if outcome.failure is not None:
                raise EngineError(outcome.failure.code, outcome.failure.message)
        return outcomes

    def _request(self, prompt: Ids, output_tokens: int) -> GenerationRequest:
        self._serial += 1
        return GenerationRequest(
            id=f"bench-{self._serial}",
            tokens=prompt.astype("<i4").tobytes(),
            positions=b"",
            initial_channel="content",
            sampling=_GREEDY,
            max_tokens=output_tokens,
            stop_token_ids=(),
            ignore_stop_tokens=True,
        )

    def _serve(self) -> None:
        reason = "the engine has ended"
        try:
            self._worker.run()
        except Exception as error:
            reason = f"the engine has ended: {error!r}"
        self._outlet.end_all("engine_unavailable", reason)

    def _publish(self, event: EngineEvent) -> None:
        if isinstance(event, RequestEvent):
            self._outlet.deliver(event)
        elif isinstance(event, LogRecord) and event.level != "debug":
            self._ledger |= read_ledger(event.message)
            print(event.message, file=sys.stderr)

    def _note_loaded(self, loaded: int, total: int) -> None:
        self._loaded = loaded


class _Batch:
    """Requests that run at once: who is still open, and what each one told."""

    def __init__(self, size: int) -> None:
        self._open = size
        self._changed = threading.Condition()
        self._outcomes: list[Outcome] = []

    def open(self) -> Callable[[RequestEvent], None]:
        """The sink of one more request, submitted now."""
        outcome = Outcome(time.monotonic())
        self._outcomes.append(outcome)
        published = 0

        def sink(event: RequestEvent) -> None:
            nonlocal published
            if isinstance(event, Delta):
                published += len(event.token_ids)
                outcome.arrivals.append((time.monotonic(), published))
            elif isinstance(event, Finished | Failed):
                self._close(outcome, event)

        return sink

    def _close(self, outcome: Outcome, event: Finished | Failed) -> None:
        with self._changed:
            if isinstance(event, Finished):
                outcome.usage = event.usage
            else:
                outcome.failure = event
            self._open -= 1
            self._changed.notify()

    def wait(self) -> list[Outcome]:
        """Every outcome, in order of submission."""
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0)
        return self._outcomes


def read_ledger(message: str) -> dict[str, float]:
    """The figures of the engine's line ``memory_mib owner=MiB …``; none of any other line."""
    head, *parts = message.split()
    if head != "memory_mib":
        return {}
    return {name: float(value) for name, _, value in (part.partition("=") for part in parts)}
