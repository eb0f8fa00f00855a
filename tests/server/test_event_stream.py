"""The bridge from the engine's thread: order kept, deltas joined, buffers bounded by the answer."""

from __future__ import annotations

import asyncio
import threading

from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.events import Delta, Failed, Finished, Progress, RequestEvent, Started, Usage
from ninfer.server.event_stream import EventStream

END = Finished("r", "stop", Usage(1, 0, 1, 0, 0.0, 0.0, 0.0))


async def drained(stream: EventStream) -> list[RequestEvent]:
    taken: list[RequestEvent] = []
    while not taken or not isinstance(taken[-1], Finished):
        events = await stream.take(10)
        assert events
        taken += events
    return taken


def scenario(*events: RequestEvent) -> list[RequestEvent]:
    async def run() -> list[RequestEvent]:
        stream = EventStream(asyncio.get_running_loop())
        for event in events:
            stream.put(event)
        return await drained(stream)

    return asyncio.run(run())


def test_a_reader_that_keeps_up_gets_events_as_they_are() -> None:
    events = [
        Started("r", 1, 0, 0.0),
        Delta("r", "content", "a", (1,)),
        Delta("r", "content", "b", (2,)),
        END,
    ]
    assert scenario(*events) == events


def test_adjacent_deltas_of_a_channel_are_one_for_a_slow_reader() -> None:
    reasoning = [Delta("r", "reasoning", "a", (n,), n + 1, 0.5, n / 10) for n in range(200)]
    content = Delta("r", "content", "c", (4,), 201, 0.5, 21.0)
    assert scenario(Started("r", 1, 0, 0.0), *reasoning, content, END) == [
        Started("r", 1, 0, 0.0),
        Delta("r", "reasoning", "a" * 200, tuple(range(200)), 200, 0.5, 19.9),
        content,
        END,
    ]


def test_a_newer_progress_replaces_an_older_one() -> None:
    progress = [Progress("r", 3, 0, processed, 0.0) for processed in (1, 2, 3)]
    assert scenario(*progress, END) == [progress[-1], END]


def test_a_failure_comes_alone_and_loses_nothing_before_it() -> None:
    async def run() -> None:
        stream = EventStream(asyncio.get_running_loop())
        delta, failed = Delta("r", "content", "a"), Failed("r", "internal_error", "m")
        stream.put(delta)
        stream.put(failed)
        assert await stream.take(10) == [delta]
        assert not stream.exhausted
        assert await stream.take(10) == [failed]
        assert stream.exhausted

    asyncio.run(run())


def test_taking_gives_others_their_turn() -> None:
    """Also where there is always more: a flood must not keep the loop from other requests."""

    async def run() -> None:
        stream = EventStream(asyncio.get_running_loop())
        turns: list[int] = []

        async def other() -> None:
            for turn in range(3):
                turns.append(turn)
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for _ in range(3):
            stream.put(Delta("r", "content", "a"))
            assert await stream.take(10)
        assert turns == [0, 1, 2]
        await task

    asyncio.run(run())


def test_silence_is_empty_and_loses_nothing() -> None:
    async def run() -> None:
        stream = EventStream(asyncio.get_running_loop())
        assert await stream.take(0.01) == []
        assert not stream.ended
        stream.put(END)
        assert stream.ended
        assert not stream.exhausted
        assert await stream.take(10) == [END]
        assert stream.exhausted

    asyncio.run(run())


@given(st.lists(st.tuples(st.sampled_from(["reasoning", "content"]), st.text(max_size=3)), max_size=40))
def test_text_survives_any_interleaving_of_threads(pieces: list[tuple[str, str]]) -> None:
    async def run() -> list[RequestEvent]:
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

    taken = [event for event in asyncio.run(run()) if isinstance(event, Delta)]
    for channel in ("reasoning", "content"):
        wanted = "".join(text for name, text in pieces if name == channel)
        assert "".join(event.text for event in taken if event.channel == channel) == wanted
