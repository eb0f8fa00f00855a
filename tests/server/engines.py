"""Engines for server tests: scripted plays, with every request they were given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np

from ninfer.engine.events import RequestEvent
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.scripted import Play, Script, ScriptedEngine, Step


class RecordingEngine(ScriptedEngine):
    """A scripted engine that keeps what it was asked."""

    def __init__(self, script: Script | None = None) -> None:
        super().__init__(script or Script())
        self.requests: list[GenerationRequest] = []

    def generate(
        self, request: GenerationRequest, cancelled: Callable[[], bool], queue_s: float
    ) -> Iterator[RequestEvent]:
        self.requests.append(request)
        return super().generate(request, cancelled, queue_s)

    @property
    def last(self) -> GenerationRequest:
        return self.requests[-1]

    def prompt(self) -> list[int]:
        """The token ids of the last request's prompt."""
        ids: list[int] = np.frombuffer(self.last.tokens, dtype="<i4").tolist()
        return ids


class HeldEngine(RecordingEngine):
    """A scripted engine whose requests begin and then stand still until ``going`` is set."""

    def __init__(self, script: Script | None = None) -> None:
        super().__init__(script)
        self.going = threading.Event()

    def generate(
        self, request: GenerationRequest, cancelled: Callable[[], bool], queue_s: float
    ) -> Iterator[RequestEvent]:
        events = super().generate(request, cancelled, queue_s)
        yield next(events)
        while not self.going.wait(0.01) and not cancelled():
            pass
        yield from events


def saying(*texts: str, **plays: Play) -> Script:
    """A script whose default play is these tokens; ``plays`` by seed as ``s7=Play(…)``."""
    by_seed = {name.removeprefix("s"): play for name, play in plays.items()}
    return Script(plays=by_seed, default=Play(tuple(Step(text=text) for text in texts)))
