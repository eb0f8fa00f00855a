"""Builds generation requests and collects what an engine answers, for the engine's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ninfer.engine.events import Delta, Finished, Progress, RequestEvent, Started
from ninfer.engine.interface import SerialEngine
from ninfer.engine.requests import GenerationRequest
from ninfer.sampling.parameters import SamplingParameters


def sampling(temperature: float = 0.0, seed: int = 0, **changes: Any) -> SamplingParameters:
    values = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    return SamplingParameters(temperature=temperature, seed=seed, **(values | changes))


def request(
    tokens: Sequence[int],
    parameters: SamplingParameters | None = None,
    max_tokens: int = 16,
    positions: Sequence[Sequence[int]] | None = None,
    **changes: Any,
) -> GenerationRequest:
    fields: dict[str, Any] = {"initial_channel": "content", "stop_token_ids": ()}
    return GenerationRequest(
        id="r1",
        tokens=np.asarray(tokens, "<i4").tobytes(),
        positions=b"" if positions is None else np.asarray(positions, "<i4").tobytes(),
        sampling=parameters or sampling(),
        max_tokens=max_tokens,
        **(fields | changes),
    )


@dataclass(frozen=True)
class Answer:
    """The events of one request, in parts."""

    started: Started
    progress: list[Progress]
    deltas: list[Delta]
    finished: Finished

    @property
    def ids(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]

    def text(self, channel: str = "content") -> str:
        return "".join(delta.text for delta in self.deltas if delta.channel == channel)


def run(
    engine: SerialEngine,
    request: GenerationRequest,
    cancelled: Callable[[], bool] = lambda: False,
    queue_s: float = 0.0,
) -> Answer:
    return collect(engine.generate(request, cancelled, queue_s))


def collect(events: Iterable[RequestEvent]) -> Answer:
    """Checks the order that every answer keeps: Started, Progress…, Delta…, Finished."""
    kinds: list[type] = []
    found = list(events)
    for event in found:
        assert event.id == "r1"
        if not kinds or kinds[-1] is not type(event):
            kinds.append(type(event))
    assert kinds == [k for k in (Started, Progress, Delta, Finished) if k in kinds]
    assert isinstance(found[0], Started)
    assert isinstance(found[-1], Finished)
    return Answer(
        found[0],
        [event for event in found if isinstance(event, Progress)],
        [event for event in found if isinstance(event, Delta)],
        found[-1],
    )
