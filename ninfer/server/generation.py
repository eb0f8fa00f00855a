"""One generation through the server, whatever its protocol: resolve, submit, follow, cancel.

Owns how a prepared prompt and the request's fields become what an engine is asked, and the life of the
request while its handler runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from ninfer.engine.interface import EngineHost
from ninfer.engine.requests import GenerationRequest
from ninfer.errors import RequestError
from ninfer.model.presets import preset
from ninfer.prompt.prepared import PreparedPrompt
from ninfer.sampling.parameters import SamplingOverrides
from ninfer.sampling.resolve import random_seed, resolve_sampling
from ninfer.server.event_stream import EventStream
from ninfer.server.outstanding import Outstanding, Slot
from ninfer.server.served_model import ServedModel
from ninfer.server.transport import TransportLimits

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GenerationFields:
    """What a request says about its generation; None leaves the server's own value."""

    sampling: SamplingOverrides = field(default_factory=SamplingOverrides)
    seed: int | None = None
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What the process says where a request does not (``--temperature`` … ``--seed``, ``--greedy``)."""

    max_tokens: int
    sampling: SamplingOverrides = field(default_factory=SamplingOverrides)
    seed: int | None = None
    greedy: bool = False


def resolve(
    model: ServedModel,
    defaults: GenerationDefaults,
    request_id: str,
    prompt: PreparedPrompt,
    fields: GenerationFields,
    fresh_seed: Callable[[], int] = random_seed,
) -> GenerationRequest:
    """The complete request for an engine.

    Errors: ``RequestError`` ``context_length_exceeded`` when the prompt alone exceeds the context.
    """
    room = model.max_context - prompt.token_count
    if room < 0:
        raise RequestError(
            "context_length_exceeded",
            f"This server's context is {model.max_context} tokens, but the prompt has {prompt.token_count}.",
            "messages",
        )
    wanted = defaults.max_tokens if fields.max_tokens is None else fields.max_tokens
    return GenerationRequest(
        id=request_id,
        tokens=prompt.tokens.astype("<i4", copy=False).tobytes(),
        positions=b"",
        initial_channel=prompt.initial_channel,
        sampling=resolve_sampling(
            preset(model.config, prompt.thinking),
            defaults.sampling,
            fields.sampling,
            defaults.greedy,
            defaults.seed if fields.seed is None else fields.seed,
            fresh_seed,
        ),
        max_tokens=min(wanted, room),
        stop_token_ids=model.stop_token_ids,
        stops=fields.stops,
    )


@dataclass(frozen=True, slots=True)
class Services:
    """What every handler works with; one per server."""

    model: ServedModel
    defaults: GenerationDefaults
    host: EngineHost
    outstanding: Outstanding
    workers: ThreadPoolExecutor
    limits: TransportLimits
    max_request_bytes: int

    async def in_thread(self, slot: Slot, work: Callable[[], T]) -> T:
        """Run ``work`` off the event loop; the slot stays taken until it ends, whoever waits for it."""
        slot.hold()
        future = self.workers.submit(work)
        future.add_done_callback(lambda _: slot.release())
        return await asyncio.wrap_future(future)

    @asynccontextmanager
    async def generating(self, request: GenerationRequest) -> AsyncIterator[EventStream]:
        """Submit ``request`` and give its events; leaving early, for any reason, cancels it."""
        events = EventStream(asyncio.get_running_loop())
        self.host.submit(request, events.put)
        try:
            yield events
        finally:
            if not events.ended:
                self.host.cancel(request.id)
