"""The bridge from an engine's thread to one request's coroutine.

Owns the buffer between them. It is bounded by the request itself: progress reports replace one another, and
a reader that has fallen behind gets adjacent deltas as one, so it never holds more than the answer it asked
for.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Iterator

from ninfer.engine.events import Delta, Failed, Finished, Progress, RequestEvent

# So many waiting events are handed over as they are; of more, adjacent deltas are joined.
_BEHIND = 64


class EventStream:
    """One request's events; ``put`` is an ``EventSink``, ``take`` is awaited by one coroutine.

    ``ended`` tells that the engine has nothing more to say, ``exhausted`` that all of it was taken.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived = asyncio.Event()
        self._lock = threading.Lock()
        self._events: deque[RequestEvent] = deque()
        self._announced = False
        self.ended = False

    @property
    def exhausted(self) -> bool:
        return self.ended and not self._events

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

    async def take(self, timeout_s: float | None = None) -> list[RequestEvent]:
        """The events that are there, at least one; none when ``timeout_s`` passes without one.

        A ``Failed`` comes by itself: what was published before it is not lost with it. The loop gets a turn
        in any case: where there is always more, other requests would get none.
        """
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(timeout_s):
                while not (events := self._take_now()):
                    await self._arrived.wait()
        except TimeoutError:
            return []
        return events

    def _take_now(self) -> list[RequestEvent]:
        with self._lock:
            events = list(self._events)
            self._events.clear()
            if len(events) > 1 and isinstance(events[-1], Failed):
                self._events.append(events.pop())
            self._arrived.clear()
            self._announced = False
        return events if len(events) <= _BEHIND else list(_joined(events))


def _joined(events: Iterable[RequestEvent]) -> Iterator[RequestEvent]:
    """Neighbouring deltas of one channel as one."""
    run: list[Delta] = []
    for event in events:
        if run and not (isinstance(event, Delta) and event.channel == run[0].channel):
            yield _one(run)
            run = []
        if isinstance(event, Delta):
            run.append(event)
        else:
            yield event
    if run:
        yield _one(run)


def _one(run: list[Delta]) -> Delta:
    last = run[-1]
    return Delta(
        last.id,
        last.channel,
        "".join(delta.text for delta in run),
        tuple(token for delta in run for token in delta.token_ids),
        last.committed,
        last.prompt_s,
        last.decode_s,
    )
