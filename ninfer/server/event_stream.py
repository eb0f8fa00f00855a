"""The bridge from an engine's thread to one request's coroutine.

Owns the buffer between them. It is bounded by the request itself: progress reports replace one another and
adjacent deltas are taken as one, so a slow reader never holds more than the answer it asked for.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from ninfer.engine.events import Delta, Failed, Finished, Progress, RequestEvent


class EventStream:
    """One request's events; ``put`` is an ``EventSink``, ``take`` is awaited by one coroutine.

    ``ended`` tells that the engine has nothing more to say, whether or not it was taken yet.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived = asyncio.Event()
        self._lock = threading.Lock()
        self._events: deque[RequestEvent] = deque()
        self._announced = False
        self.ended = False

    def put(self, event: RequestEvent) -> None:
        """From any thread."""
        with self._lock:
            if isinstance(event, Progress) and self._events and isinstance(self._events[-1], Progress):
                self._events[-1] = event
            else:
                self._events.append(event)
            self.ended = isinstance(event, Finished | Failed)
            announce, self._announced = not self._announced, True
        if announce:
            try:
                self._loop.call_soon_threadsafe(self._arrived.set)
            except RuntimeError:  # the loop has closed: the process is leaving, nobody waits any more
                return

    async def take(self, timeout_s: float | None = None) -> RequestEvent | None:
        """The next event; None when ``timeout_s`` passes without one."""
        try:
            async with asyncio.timeout(timeout_s):
                while (event := self._take_now()) is None:
                    await self._arrived.wait()
        except TimeoutError:
            return None
        return event

    def _take_now(self) -> RequestEvent | None:
        with self._lock:
            event = self._take_merged() if self._events else None
            if not self._events:
                self._arrived.clear()
                self._announced = False
        return event

    def _take_merged(self) -> RequestEvent:
        event = self._events.popleft()
        if not isinstance(event, Delta):
            return event
        run = [event]
        while (
            self._events and isinstance(self._events[0], Delta) and self._events[0].channel == event.channel
        ):
            following = self._events.popleft()
            assert isinstance(following, Delta)
            run.append(following)
        if len(run) == 1:
            return event
        return Delta(
            event.id,
            event.channel,
            "".join(delta.text for delta in run),
            tuple(token for delta in run for token in delta.token_ids),
        )
