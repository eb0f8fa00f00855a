"""The bridge from an engine's thread to one request's coroutine.

Owns the buffer between them. It is bounded by the request itself: progress reports replace one another, and
a reader that has fallen behind gets adjacent deltas as one, so it never holds more than the answer it asked
for.
"""

from __future__ import annotations

import asyncio
import math
import threading
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
        self._lock = threading.Lock()
        self._events: list[RequestEvent] = []
        self._announced = False
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = math.inf
        # Set again only when it rings: a timer for every token would cost as much as the token's event.
        self._alarm: asyncio.Handle | None = None
        self._rings_at = math.inf
        self.ended = False

    @property
    def exhausted(self) -> bool:
        return self.ended and not self._events

    def put(self, event: RequestEvent) -> None:
        """From any thread."""
        with self._lock:
            events = self._events
            if isinstance(event, Progress) and events and isinstance(events[-1], Progress):
                events[-1] = event
            else:
                events.append(event)
            self.ended = isinstance(event, Finished | Failed)
            announce, self._announced = not self._announced, True
        if announce:
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the loop has closed: the process is leaving, nobody waits any more
                return

    async def take(self, timeout_s: float | None = None) -> list[RequestEvent]:
        """The events that are there, at least one; none when ``timeout_s`` passes without one.

        A ``Failed`` comes by itself: what was published before it is not lost with it. The loop gets a turn
        in any case: where there is always more, other requests would get none.
        """
        if self._events:
            await asyncio.sleep(0)
        self._deadline = math.inf if timeout_s is None else self._loop.time() + timeout_s
        while not (events := self._take_now()):
            if self._loop.time() >= self._deadline:
                return []
            await self._wait()
        return events

    def close(self) -> None:
        """Nobody takes any more."""
        if self._alarm is not None:
            self._alarm.cancel()

    async def _wait(self) -> None:
        """Until something is announced or the deadline has come, or shorter."""
        self._waiter = self._loop.create_future()
        if self._deadline < self._rings_at:
            self._set_alarm()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _set_alarm(self) -> None:
        self.close()
        self._rings_at = self._deadline
        self._alarm = self._loop.call_at(self._deadline, self._ring)

    def _ring(self) -> None:
        self._rings_at = math.inf
        if self._loop.time() >= self._deadline:
            self._wake()
        elif self._waiter is not None and self._deadline < math.inf:
            self._set_alarm()

    def _take_now(self) -> list[RequestEvent]:
        with self._lock:
            events, self._events = self._events, []
            if len(events) > 1 and isinstance(events[-1], Failed):
                self._events.append(events.pop())
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
