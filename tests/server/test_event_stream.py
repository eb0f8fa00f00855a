"""The bridge from the engine's thread: order kept, deltas joined, buffers bounded by the answer."""

from __future__ import annotations

import asyncio
import threading

from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.events import Delta, Finished, Progress, RequestEvent, Started, Usage
from ninfer.server.event_stream import EventStream

END = Finished("r", "stop", Usage(1, 0, 1, 0, 0.0, 0.0, 0.0))


async def drained(stream: EventStream) -> list[RequestEvent]:
    taken = []
    while not taken or not isinstance(taken[-1], Finished):
        event = await stream.take(10)
        assert event is not None
        taken.append(event)
    return taken


def test_adjacent_deltas_of_a_channel_are_one_for_a_slow_reader() -> None:
    async def scenario() -> list[RequestEvent]:
        stream = EventStream(asyncio.get_running_loop())
        deltas = [
            Delta("r", "reasoning", "a", (1,)),
            Delta("r", "reasoning", "b", (2, 3)),
            Delta("r", "content", "c", (4,)),
        ]
        for event in (Started("r", 1, 0, 0.0), *deltas, END):
            stream.put(event)
        return await drained(stream)

    assert asyncio.run(scenario()) == [
        Started("r", 1, 0, 0.0),
        Delta("r", "reasoning", "ab", (1, 2, 3)),
        Delta("r", "content", "c", (4,)),
        END,
    ]


def test_a_newer_progress_replaces_an_older_one() -> None:
    async def scenario() -> list[RequestEvent]:
        stream = EventStream(asyncio.get_running_loop())
        for processed in (1, 2, 3):
            stream.put(Progress("r", 3, 0, processed, 0.0))
        stream.put(END)
        return await drained(stream)

    assert asyncio.run(scenario()) == [Progress("r", 3, 0, 3, 0.0), END]


def test_silence_is_none_and_loses_nothing() -> None:
    async def scenario() -> list[RequestEvent | None]:
        stream = EventStream(asyncio.get_running_loop())
        silent = await stream.take(0.01)
        assert not stream.ended
        stream.put(END)
        assert stream.ended
        return [silent, await stream.take(10)]

    assert asyncio.run(scenario()) == [None, END]


@given(st.lists(st.tuples(st.sampled_from(["reasoning", "content"]), st.text(max_size=3)), max_size=40))
def test_text_survives_any_interleaving_of_threads(pieces: list[tuple[str, str]]) -> None:
    async def scenario() -> list[RequestEvent]:
        stream = EventStream(asyncio.get_running_loop())

        def produce() -> None:
            for channel, text in pieces:
                stream.put(Delta("r", channel, text))  # type: ignore[arg-type]
            stream.put(END)

        thread = threading.Thread(target=produce)
        thread.start()
        taken = await drained(stream)
        thread.join()
        return taken

    taken = [event for event in asyncio.run(scenario()) if isinstance(event, Delta)]
    for channel in ("reasoning", "content"):
        wanted = "".join(text for name, text in pieces if name == channel)
        assert "".join(event.text for event in taken if event.channel == channel) == wanted
