"""Builders of engine requests and small engines for the engine's tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import msgspec

from ninfer.engine.events import Delta, Failed, Finished, RequestEvent, Started, Usage
from ninfer.engine.requests import GenerationRequest, SamplingParameters


def generation(
    request_id: str, *, seed: int = 0, max_tokens: int = 16, **members: object
) -> GenerationRequest:
    """A request for three prompt tokens."""
    request = GenerationRequest(
        id=request_id,
        tokens=bytes(12),
        positions=b"",
        initial_channel="content",
        sampling=SamplingParameters(0.0, 1.0, 20, 0.0, 0.0, 0.0, seed),
        max_tokens=max_tokens,
        stop_token_ids=(),
    )
    return msgspec.structs.replace(request, **members)


def usage(completion_tokens: int = 1) -> Usage:
    return Usage(3, 0, completion_tokens, 0, 0.0, 0.0, 0.0)


class Recorder:
    """A sink that keeps its events and lets a test wait for the last."""

    def __init__(self) -> None:
        self.events: list[RequestEvent] = []
        self._changed = threading.Condition()

    def __call__(self, event: RequestEvent) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait_for(
        self, done: Callable[[list[RequestEvent]], bool], timeout: float = 20.0
    ) -> list[RequestEvent]:
        with self._changed:
            assert self._changed.wait_for(lambda: done(self.events), timeout), f"only got {self.events}"
            return list(self.events)

    def end(self) -> RequestEvent:
        """The terminal event."""
        return self.wait_for(lambda events: bool(events) and isinstance(events[-1], Finished | Failed))[-1]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Delta))


class GatedEngine:
    """Answers each request with its id once its gate is open; ``failures`` maps ids to what is raised."""

    name = "gated"

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.started = threading.Event()
        self.served: list[str] = []
        self.failures: dict[str, Exception] = {}

    def generate(
        self, request: GenerationRequest, cancelled: Callable[[], bool], queue_s: float
    ) -> Iterator[RequestEvent]:
        self.served.append(request.id)
        yield Started(request.id, 3, 0, queue_s)
        self.started.set()
        while not self.gate.wait(0.002):
            if cancelled():
                yield Finished(request.id, "cancelled", usage(0))
                return
        if request.id in self.failures:
            raise self.failures[request.id]
        yield Delta(request.id, "content", request.id)
        yield Finished(request.id, "stop", usage())
