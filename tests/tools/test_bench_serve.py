"""The load client against a server that answers as told, and the figures by hand."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.fast.schedule.gaps import ROUNDS, RoundGaps
from tools.bench import serve
from tools.bench.rounds import _LINE
from tools.bench.serve import (
    EARLY_SHARE,
    Load,
    Run,
    Stall,
    line,
    measure,
    quantile,
    stall,
    stall_line,
    summarise,
)
from tools.bench.streams import Answer, Client, LoadError, Stream

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def event(text: str | None = None, usage: dict[str, int] | None = None, key: str = "content") -> bytes:
    choices = [] if text is None else [{"delta": {key: text}}]
    return b"data: " + json.dumps({"choices": choices, "usage": usage}).encode() + b"\n\n"


def usage(prompt: int, completion: int) -> bytes:
    return event(usage={"prompt_tokens": prompt, "completion_tokens": completion})


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}".encode() + b"\r\n" + data + b"\r\n"


END = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Server:
    """Answers each request with the pieces that ``play`` yields for its body; one thread a connection."""

    def __init__(self, play: Callable[[dict[str, Any]], Iterator[bytes]]) -> None:
        self._play = play
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.bodies: list[dict[str, Any]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as stream:
            first = stream.readline()
            length = 0
            while (header := stream.readline().strip().lower()) != b"":
                if header.startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            if first.startswith(b"GET /v1/models "):
                stream.write(b'HTTP/1.1 200 OK\r\n\r\n{"data":[{"id":"told"}]}')
                return
            body = json.loads(stream.read(length))
            self.bodies.append(body)
            with suppress(ConnectionError):  # a client that has seen enough
                for piece in self._play(body):
                    stream.write(piece)
                    stream.flush()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def server() -> Iterator[Callable[[Callable[[dict[str, Any]], Iterator[bytes]]], Server]]:
    started: list[Server] = []

    def start(play: Callable[[dict[str, Any]], Iterator[bytes]]) -> Server:
        started.append(Server(play))
        return started[-1]

    yield start
    for each in started:
        each.close()


Start = Callable[[Callable[[dict[str, Any]], Iterator[bytes]]], Server]


def test_a_stream_is_read_with_its_times(server: Start) -> None:
    def play(body: dict[str, Any]) -> Iterator[bytes]:
        yield HEAD + chunk(event(""))
        time.sleep(0.03)
        yield chunk(event("a") + event("b", key="reasoning_content"))
        time.sleep(0.02)
        yield chunk(event("c")) + chunk(usage(7, 3)) + END

    running = server(play)
    client = Client(running.url)
    (answer,) = client.answers([client.body("copy me", 5)])
    assert (answer.prompt_tokens, answer.completion_tokens) == (7, 3)
    assert len(answer.arrivals) == 3
    assert answer.first_token_s >= 0.03
    assert answer.gaps[0] < 0.01
    assert answer.gaps[1] >= 0.019
    (body,) = running.bodies
    assert body["model"] == "told"
    assert (body["stream"], body["max_tokens"], body["temperature"]) == (True, 5, 0)
    assert body["messages"] == [{"role": "user", "content": "copy me"}]


@given(st.lists(st.text(max_size=5), min_size=1, max_size=8), st.data())
def test_events_are_found_however_the_bytes_are_cut(texts: list[str], data: st.DataObject) -> None:
    """Chunks and packets may end anywhere; an event has the time of the piece that holds its last byte."""
    events = [event(text) for text in texts] + [usage(1, 2), b"data: [DONE]\n\n"]
    stream = b"".join(events)
    raw, place = HEAD, 0
    ends: dict[int, int] = {}  # end of an event in the text → its last byte's place in the raw bytes
    borders = set(itertools.accumulate(len(part) for part in events))
    while place < len(stream):
        size = data.draw(st.integers(1, 60))
        part = stream[place : place + size]
        head = f"{len(part):X}".encode() + b"\r\n"
        for border in borders:
            if place < border <= place + len(part):
                ends[border] = len(raw) + len(head) + border - place - 1
        raw += head + part + b"\r\n"
        place += len(part)
    raw += b"0\r\n\r\n"
    cuts = sorted({0, len(raw), *data.draw(st.lists(st.integers(0, len(raw)), max_size=12))})
    spans = list(itertools.pairwise(cuts))
    pieces = [(float(number), raw[begin:end]) for number, (begin, end) in enumerate(spans)]
    expected = []
    for text, border in zip(texts, itertools.accumulate(len(part) for part in events), strict=False):
        if text:
            expected += [float(n) for n, (begin, end) in enumerate(spans) if begin <= ends[border] < end]
    found = Stream(0.0, pieces)
    if not expected:
        with pytest.raises(LoadError):
            found.answer()
    else:
        assert list(found.answer().arrivals) == expected


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 429 Too Many\r\n\r\n{}",
        HEAD + chunk(event("a")) + END,
        HEAD + chunk(usage(1, 1)) + END,
        HEAD + chunk(b'data: {"error": {"code": "overloaded"}}\n\n') + END,
    ],
)
def test_anything_but_a_whole_answer_is_an_error(raw: bytes) -> None:
    with pytest.raises(LoadError):
        Stream(0.0, [(1.0, raw)]).answer()


def test_streams_in_turn_ask_again_when_they_end(server: Start) -> None:
    def play(body: dict[str, Any]) -> Iterator[bytes]:
        yield HEAD + chunk(event("x")) + chunk(usage(1, body["max_tokens"])) + END

    client = Client(server(play).url)
    queues = [[client.body("p", 10 * stream + index) for index in range(1, 4)] for stream in range(3)]
    answers = client.in_turn(queues)
    assert sorted(a.completion_tokens for a in answers) == [1, 2, 3, 11, 12, 13, 21, 22, 23]
    by_stream = {tens: [a for a in answers if a.completion_tokens // 10 == tens] for tens in range(3)}
    for turn in by_stream.values():
        for earlier, later in itertools.pairwise(turn):
            assert later.sent_at >= earlier.ended_at


def answer(sent: float, arrivals: list[float], ended: float, tokens: int) -> Answer:
    return Answer(sent, tuple(arrivals), ended, 9, tokens)


def test_figures_of_a_repetition() -> None:
    run = summarise(
        2, [answer(0.0, [1.0, 2.0, 4.0], 5.0, 9), answer(1.0, [4.0, 5.0], 9.0, 6), answer(5.0, [6.0], 8.0, 3)]
    )
    assert (run.streams, run.completion_tokens, run.rate) == (2, 18, 2.0)
    assert run.decode_rate == 8 / 3  # of 8/3, 5/1 and nothing
    assert run.first_token == 1.0
    assert (run.gap_p50, run.gap_p95, run.gap_max) == (1.0, 2.0, 2.0)


def test_gaps_within_touch_the_span() -> None:
    whole = answer(0.0, [1.0, 2.0, 4.0, 7.0, 11.0], 11.0, 5)
    assert whole.gaps == [1.0, 2.0, 3.0, 4.0]
    assert whole.gaps_within(2.0, 4.5) == [2.0, 3.0]
    assert whole.gaps_within(5.0, 6.0) == [3.0]


@given(st.lists(st.integers(0, 99), min_size=1).map(sorted), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_a_quantile_is_the_least_value_that_enough_do_not_exceed(values: list[int], share: float) -> None:
    found = quantile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    below = [value for value in values if value < found]
    assert not below or sum(value <= below[-1] for value in values) < share * len(values)


def test_the_line_takes_medians_over_repetitions() -> None:
    runs = [
        Run(8, 10, rate, 5.0, 0.001, 0.002, 0.003, gap)
        for rate, gap in ((900.0, 0.1), (990.0, 0.4), (4e3, 0.2))
    ]
    text = line(runs)
    assert "streams=8 tok_s=990.0 min=900.0 max=4000.0" in text
    assert "gap_max_ms=400.00" in text
    assert text.endswith("target=1800 reached=0.55")


@pytest.mark.parametrize(("early", "breaks"), [(1, False), (3, True)])
def test_most_answers_must_be_whole(server: Start, early: int, breaks: bool) -> None:
    asked = itertools.count()

    def play(body: dict[str, Any]) -> Iterator[bytes]:
        tokens = 2 if next(asked) % 8 < early else 5
        yield HEAD + chunk(event("x")) + chunk(event("y")) + chunk(usage(1, tokens)) + END

    assert 1 / 8 < EARLY_SHARE < 3 / 8
    client = Client(server(play).url)
    if breaks:
        with pytest.raises(LoadError, match="ended by themselves"):
            measure(client, 2, Load(5, 3, 4), 1, itertools.count())
    else:
        (run,) = measure(client, 2, Load(5, 3, 4), 1, itertools.count())
        assert run.completion_tokens == 7 * 5 + 2


class WatchedClient(Client):
    """A client that a play can ask what has come, so that the order of a test is no matter of time."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.started: list[Stream] = []

    def start(self, body: bytes) -> Stream:
        self.started.append(super().start(body))
        return self.started[-1]

    def has(self, number: int) -> bool:
        """Whether the whole answer of that request has come."""
        if number >= len(self.started):
            return False
        return b"".join(piece for _, piece in self.started[number].pieces).endswith(END)


def test_the_longest_gap_beside_a_prompt_is_found(server: Start) -> None:
    """Streams give a piece a millisecond, but stall for 100 ms while the long prompt is taken in."""
    free, clients = threading.Event(), list[WatchedClient]()
    free.set()

    def play(body: dict[str, Any]) -> Iterator[bytes]:
        yield HEAD
        if body["max_tokens"] == 1:
            if len(running.bodies) > 2:  # the first one runs alone, its two streams come later
                free.clear()
                time.sleep(0.1)
                free.set()
            else:
                time.sleep(0.08)
            yield chunk(event("x")) + chunk(usage(4000, 1)) + END
            return
        while not clients[0].has(3):
            free.wait()
            time.sleep(0.001)
            yield chunk(event("x"))
        yield chunk(event("y")) + chunk(usage(5, 200)) + END

    running = server(play)
    clients.append(WatchedClient(running.url))
    found = stall(clients[0], lambda: "long", Load(200, 10, 1), 1000, itertools.count())
    assert found.prompt_tokens == 4000
    assert found.alone >= 0.08
    assert found.allowed == pytest.approx(2 * found.alone / 4)
    # A client that stood still meanwhile may have read the last piece before the stall in its midst.
    assert found.longest_gap >= 0.05


def test_a_stream_that_ends_too_soon_shows_nothing(server: Start) -> None:
    clients: list[WatchedClient] = []

    def play(body: dict[str, Any]) -> Iterator[bytes]:
        if body["max_tokens"] == 1:
            while len(clients[0].started) > 1 and not (clients[0].has(1) and clients[0].has(2)):
                time.sleep(0.001)
            yield HEAD + chunk(event("x")) + chunk(usage(100, 1)) + END
            return
        yield HEAD
        for _ in range(30):
            time.sleep(0.001)
            yield chunk(event("x"))
        yield chunk(usage(1, 30)) + END

    clients.append(WatchedClient(server(play).url))
    with pytest.raises(LoadError, match="before the long prompt"):
        stall(clients[0], lambda: "long", Load(30, 10, 1), 64, itertools.count())


def test_the_stall_line() -> None:
    text = stall_line([Stall(8000, 2.0, 3.0, 0.3, 0.5), Stall(8000, 2.0, 3.0, 0.6, 0.5)])
    assert "longest_gap_ms=450.0 two_chunks_ms=500.0 ratio=0.90 worst=1.20" in text


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(SystemExit) as left:
        serve.main(["--url", f"http://127.0.0.1:{port}", "--no-ceiling"])
    assert str(left.value).startswith("serve: ")


def test_rounds_reads_the_line_that_the_worker_writes() -> None:
    lines: list[str] = []
    gaps = RoundGaps(lines.append)
    for number in range(ROUNDS + 1):
        gaps.note(float(number), number + 0.5)
    found = _LINE.search(lines[0])
    assert found is not None
    assert found.groups() == ("500000", "500000", "500000", "1000")
