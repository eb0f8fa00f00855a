"""What every handler of a generation works with, whatever its protocol: threads, the engine, its events.

Owns the life of a request while its handler runs: submitted, followed, cancelled when the handler leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from ninfer.engine.interface import EngineHost
from ninfer.engine.requests import GenerationRequest
from ninfer.server.access import Access
from ninfer.server.event_stream import EventStream
from ninfer.server.observe.observer import RequestObservation
from ninfer.server.observe.operations import Operations
from ninfer.server.outstanding import Outstanding, Slot
from ninfer.server.resolution import GenerationDefaults
from ninfer.server.response_store import ResponseStore
from ninfer.server.served_model import ServedModel
from ninfer.server.transport import TransportLimits

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Services:
    """What every handler works with; one per server.

    ``counting`` are the slots of token counts, which need no lane. ``tolerant_tool_calls``: calls that a
    strict reading of an answer turns to text are recovered.
    """

    model: ServedModel
    defaults: GenerationDefaults
    host: EngineHost
    outstanding: Outstanding
    counting: Outstanding
    responses: ResponseStore
    workers: ThreadPoolExecutor
    limits: TransportLimits
    max_request_bytes: int
    access: Access
    operations: Operations
    tolerant_tool_calls: bool = False
    usage_chunk_choice: bool = False

    async def in_thread(self, slot: Slot, work: Callable[[], T]) -> T:
        """Run ``work`` off the event loop; the slot stays taken until it ends, whoever waits for it."""
        slot.hold()
        future = self.workers.submit(work)
        future.add_done_callback(lambda _: slot.release())
        return await asyncio.wrap_future(future)

    @asynccontextmanager
    async def generating(
        self, request: GenerationRequest, observation: RequestObservation
    ) -> AsyncIterator[EventStream]:
        """Submit ``request`` and give its events; leaving early, for any reason, cancels it."""
        events = EventStream(asyncio.get_running_loop())
        request = msgspec.structs.replace(request, waited_s=observation.elapsed_s)
        self.host.submit(request, observation.sink(events.put))
        try:
            yield events
        finally:
            events.close()
            if not events.ended:
                self.host.cancel(request.id)
