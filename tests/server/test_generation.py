"""What the HTTP side adds to a request when it hands it to the engine."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from ninfer.engine.requests import GenerationRequest, SamplingParameters
from ninfer.server.generation import Services

GREEDY = SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 0.0, 0)


def test_the_engine_hears_how_long_preparation_took() -> None:
    submitted: list[GenerationRequest] = []
    host = SimpleNamespace(submit=lambda request, sink: submitted.append(request), cancel=lambda name: None)
    observation: Any = SimpleNamespace(elapsed_s=1.25, sink=lambda put: put)
    request = GenerationRequest("a", b"", b"", "content", GREEDY, 1, ())

    async def ask() -> None:
        services: Any = SimpleNamespace(host=host)
        async with Services.generating(services, request, observation):
            pass

    asyncio.run(ask())
    assert [(one.id, one.waited_s) for one in submitted] == [("a", 1.25)]
