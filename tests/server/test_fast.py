"""The fast engine behind HTTP: the reference's tokens, whatever the batch; nobody waits for a slow reader."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Client
from ninfer.engine.events import Delta, EngineEvent, Failed, Finished, Progress, RequestEvent
from ninfer.engine.inprocess import InProcessHost
from ninfer.engine.interface import EventSink, SerialEngine
from ninfer.engine.requests import GenerationRequest
from ninfer.server import generation
from ninfer.server.event_stream import EventStream
from tests.fast.conftest import COLD_LIMIT_S, compiled  # noqa: F401  (kernels before any server)
from tests.server.conftest import MODEL
from tests.server.fast_client import Stream, eventually, small_send_buffers, stalled_chat
from tests.server.fast_host import FastHost, serving_fast
from tests.server.inprocess import serving_host

pytestmark = pytest.mark.timeout(COLD_LIMIT_S)

TEXT = "the quick brown fox jumps over one lazy dog and naps until 7 birds sing in ünïcode"
EIGHT = ("--max-concurrency", "8")


def question(index: int, **members: Any) -> dict[str, Any]:
    """A prompt of its own for every index, some longer than a page."""
    text = f"{index} {TEXT[index:]} {TEXT * (index % 4)}"
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 24} | members


class RecordedReference(InProcessHost):
    """The reference engine's host; ``events`` are those of all requests."""

    def __init__(self, engine: SerialEngine) -> None:
        super().__init__(engine)
        self.events: list[RequestEvent] = []

    def submit(self, request: GenerationRequest, sink: EventSink) -> None:
        def record(event: RequestEvent) -> None:
            self.events.append(event)
            sink(event)

        super().submit(request, record)

    def token_ids(self, request_id: str) -> list[int]:
        deltas = (event for event in self.events if isinstance(event, Delta) and event.id == request_id)
        return [token for delta in deltas for token in delta.token_ids]


@pytest.fixture(scope="module")
def fast(nano: Path) -> Iterator[tuple[Client, FastHost]]:
    """Eight lanes that keep keys and values as the reference does, and chunks shorter than some prompts."""
    with serving_fast(nano, (*EIGHT, "--prefill-chunk", "64"), endless=False, kv_format="float32") as served:
        yield served


def answer(client: Client, host: FastHost | RecordedReference, body: dict[str, Any]) -> tuple[Any, ...]:
    """Everything of an answer that both engines must agree on."""
    response = client.chat(**body)
    assert response.status == 200
    (choice,) = response.json["choices"]
    usage = dict(response.json["usage"])
    del usage["prompt_tokens_details"]  # only one of them has a cache
    return host.token_ids(response.json["id"]), choice, usage


def check_equal_answers(
    fast: tuple[Client, FastHost],
    nano: Path,
    engine: SerialEngine,
    bodies: list[dict[str, Any]],
    *options: str,
) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda body: answer(*fast, body), bodies))
    host = RecordedReference(engine)
    with serving_host(nano, host, ("--port", "0", *MODEL, *options)) as client:
        wanted = [answer(client, host, body) for body in bodies]
    assert found == wanted
    assert sum(len(ids) for ids, *_ in wanted) > 8 * len(bodies)


@pytest.mark.clause("HTTP-024", "SETTLE-010")
def test_both_engines_give_the_same_answers(
    fast: tuple[Client, FastHost], nano: Path, reference_engine: SerialEngine
) -> None:
    """A random nano model has no near-ties among so few tokens."""
    greedy = [question(index, temperature=0) for index in range(10)]
    seeded = [question(index, seed=7) for index in range(10)]
    check_equal_answers(fast, nano, reference_engine, greedy + seeded)


@pytest.mark.parametrize("drafting", [(), ("--spec", "mtp", "--draft-tokens", "3")], ids=["plain", "mtp"])
def test_both_engines_close_thinking_alike(
    nano: Path, reference_engine: SerialEngine, drafting: tuple[str, ...]
) -> None:
    """A draft that stands where the close is forced is no draft of it."""
    budget = ("--default-thinking-budget", "6")
    bodies = [
        question(index, seed=7, presence_penalty=1.5, ignore_eos=True, max_tokens=90) for index in range(6)
    ]
    with serving_fast(nano, (*EIGHT, *budget, *drafting), kv_format="float32") as fast:
        check_equal_answers(fast, nano, reference_engine, bodies, *budget)


@pytest.mark.clause("HTTP-025")
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"seed": 7}], ids=["greedy", "seeded"])
def test_an_answer_does_not_depend_on_the_batch(
    fast: tuple[Client, FastHost], sampling: dict[str, Any]
) -> None:
    client, host = fast
    body = question(5, **sampling)
    alone = answer(client, host, body)
    before = len(host.program.rounds)
    others = [question(index, seed=index, max_tokens=200) for index in range(10, 17)]
    host.program.going.clear()
    with ThreadPoolExecutor(8) as pool:
        submitted = host.submitted
        for other in others:
            pool.submit(client.chat, **other)
        among = pool.submit(answer, client, host, body)
        eventually(lambda: host.submitted == submitted + 8)
        host.program.going.set()
        assert among.result() == alone
    assert max(host.program.rounds[before:]) >= 6  # a few may have met a stop token already


def test_streams_go_on_while_a_long_prompt_is_taken_in(nano: Path) -> None:
    """Issue gate: between two chunks of an 8,000-token prompt both running streams get a token.

    The bytes of a character may come from up to four tokens, so text may wait for as many chunks.
    """
    # Without a prefix cache, whose snapshots cut a chunk of their own.
    sizes = ("--max-concurrency", "3", "--max-context", "16384", "--prefill-chunk", "512")
    arguments = (*sizes, "--no-prefix-reuse")
    endless = {"temperature": 0, "max_tokens": 8000}
    with serving_fast(nano, arguments) as (client, host):
        with Stream(client, **endless) as first, Stream(client, **endless) as second:
            first.wait()
            second.wait()
            published, units = len(host.published), len(host.program.units)
            running = {event.id for event in host.published if isinstance(event, Delta)}
            prompt = {"messages": [{"role": "user", "content": "7" * 8000}]}
            usage = client.chat(**prompt, max_tokens=1, temperature=0).json["usage"]
        chunks = -(-usage["prompt_tokens"] // 512)
        assert usage["prompt_tokens"] >= 8000
        assert rounds_between_chunks(host.program.units[units:]) == [[2]] * (chunks - 1)
        deltas = deltas_between_chunks(host.published[published:], running)
        assert len(deltas) == chunks - 1
        for begin in range(chunks - 4):
            assert set().union(*deltas[begin : begin + 4]) == running


def rounds_between_chunks(units: list[tuple[str, int]]) -> list[list[int]]:
    """Rows of the rounds between each two chunks."""
    places = [place for place, (kind, _) in enumerate(units) if kind == "prefill"]
    return [[rows for _, rows in units[begin + 1 : end]] for begin, end in pairwise(places)]


def deltas_between_chunks(events: list[EngineEvent], running: set[str]) -> list[set[str]]:
    """Which of the running streams published text between each two reports of progress."""
    places = [place for place, event in enumerate(events) if isinstance(event, Progress)]
    return [
        {event.id for event in events[begin:end] if isinstance(event, Delta) and event.id in running}
        for begin, end in pairwise(places)
    ]


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[EventStream]:
    """What servers that start in this test hold for their readers; the kernel shall hold little of it."""
    small_send_buffers(monkeypatch)
    alive: weakref.WeakSet[EventStream] = weakref.WeakSet()

    def make(loop: asyncio.AbstractEventLoop) -> EventStream:
        stream = EventStream(loop)
        alive.add(stream)
        return stream

    monkeypatch.setattr(generation, "EventStream", make)
    return alive


@pytest.mark.clause("EXEC-004")
def test_a_reader_that_stalls_does_not_slow_another(
    nano: Path, buffers: weakref.WeakSet[EventStream]
) -> None:
    """Rounds that pass until the fast reader has its answer, alone and beside one that takes nothing.

    The engine goes on with the stalled request, so its rounds are the clock; best of three each.
    """
    arguments = ("--max-concurrency", "2", "--max-pending-requests", "0")
    with serving_fast(nano, arguments) as (client, host):
        host.program.before = lambda kind: time.sleep(0.001)
        alone = min(rounds_of_an_answer(client, host) for _ in range(3))
        with stalled_chat(client, temperature=0, max_tokens=8000):
            eventually(lambda: any(len(stream._events) > 100 for stream in list(buffers)))
            rounds = len(host.program.rounds)
            beside = min(rounds_of_an_answer(client, host) for _ in range(3))
            assert host.program.rounds[rounds:].count(2) >= 3 * 99
            assert any(len(stream._events) > 3 * 99 for stream in list(buffers))  # still stalled
        assert beside < 2 * alone
        eventually(lambda: host.count(Finished) == 7)


def rounds_of_an_answer(client: Client, host: FastHost) -> int:
    began = len(host.program.rounds)
    with Stream(client, temperature=0, max_tokens=100) as stream:
        assert len(stream.payloads()) > 10
    return len(host.program.rounds) - began


@pytest.mark.clause("EXEC-005")
def test_what_is_held_for_stalled_readers_is_bounded(
    nano: Path, buffers: weakref.WeakSet[EventStream]
) -> None:
    """Every lane's reader takes nothing: the engine finishes all the same; what is left is text, once."""
    arguments = ("--max-concurrency", "4", "--max-pending-requests", "0")
    with serving_fast(nano, arguments) as (client, host):
        host.program.before = lambda kind: time.sleep(0.001)
        before = resident_bytes()
        socks = [stalled_chat(client, temperature=1, seed=seed, max_tokens=1000) for seed in range(4)]
        eventually(lambda: host.count(Finished) == 4)
        assert resident_bytes() - before < 64 * 2**20
        held = [event for stream in list(buffers) for event in stream._events]
        assert 0 < len(held) <= 4 * 1001
        assert sum(len(event.text) for event in held if isinstance(event, Delta)) <= 4 * 1000 * 8
        assert client.chat().error["code"] == "server_overloaded"
        for sock in socks:
            sock.close()
        eventually(lambda: gc.collect() is not None and not buffers)
        assert client.chat(max_tokens=1).status == 200
        assert host.count(Failed) == 0


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
