"""A program that computes nothing: scripted tokens and failures over honest accounts of lanes and pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from ninfer.engine.events import Delta, EngineEvent, Failed, Finished, LogRecord
from ninfer.engine.requests import GenerationRequest, SamplingParameters
from ninfer.fast.engine import FastWorker
from ninfer.fast.ops.select.contract import NOT_A_NUMBER
from ninfer.fast.program.program import Lane, ProgramOptions, Row, Sampler, Tokens

GREEDY = SamplingParameters(0.0, 1.0, 20, 0.0, 0.0, 0.0, 0)
# Tokens are letters.
VOCABULARY = 26


@dataclass(frozen=True, slots=True)
class Call:
    """What the worker asked: ``open``, ``close``, ``prefill``, ``first`` or ``round`` of these requests."""

    kind: str
    numbers: tuple[int, ...]
    tokens: int = 0


def answer(number: int, index: int) -> int:
    """Token ``index`` of the answer to request ``number``, unless a script says otherwise."""
    return (7 * number + 3 * index + number * index) % VOCABULARY


class FakeProgram:
    """Request ``n`` is known by its first prompt token, n. ``fault`` may raise before any call is done.

    ``nan`` says which rows come back as no number. The accounts fail a test where a real program would
    corrupt memory.
    """

    def __init__(self, lanes: int = 2, pages: int = 64, chunk: int = 64, max_context: int = 1024) -> None:
        self.options = ProgramOptions(lanes, max_context, pages, "float32", chunk, 1, VOCABULARY)
        self.config = SimpleNamespace(vocab=1 << 20)
        self.last_unit = (0.0, 0.0)
        self.calls: list[Call] = []
        self.fault: Callable[[Call], None] = lambda call: None
        self.nan: Callable[[int], bool] = lambda number: False
        self.answer = answer
        self.number: dict[int, int] = {}
        self._prompt: dict[int, int] = {}
        self._free_slots = list(range(lanes))
        self._free_pages = list(range(pages))

    @staticmethod
    def pages_for(tokens: int) -> int:
        return -(-tokens // 64)

    def open_lane(self, ceiling: int) -> Lane:
        self._call(Call("open", (), ceiling))
        count = self.pages_for(ceiling)
        assert count <= len(self._free_pages), "a lane was opened without pages for it"
        pages, self._free_pages = self._free_pages[:count], self._free_pages[count:]
        return Lane(self._free_slots.pop(), pages, np.array(pages, np.int32))

    def close_lane(self, lane: Lane) -> None:
        self._call(Call("close", (self.number.pop(lane.slot, -1),)))
        assert lane.slot not in self._free_slots
        assert not set(lane.pages) & set(self._free_pages)
        self._free_slots.append(lane.slot)
        self._free_pages += lane.pages
        lane.pages = []

    def prefill(self, lane: Lane, tokens: Tokens, axes: Tokens) -> np.ndarray:
        assert 0 < len(tokens) <= self.options.prefill_chunk
        assert axes.shape == (3, len(tokens))
        if lane.frontier == 0:
            self.number[lane.slot] = int(tokens[0])
        self._call(Call("prefill", (self.number[lane.slot],), len(tokens)))
        lane.frontier += len(tokens)
        self._check_room(lane)
        self._prompt[lane.slot] = lane.frontier
        return np.zeros(1, np.float32)

    def first(self, lane: Lane, row: np.ndarray, sampler: Sampler) -> int:
        self._call(Call("first", (self.number[lane.slot],)))
        return self._draw(lane)

    def round(self, rows: Sequence[Row]) -> list[int]:
        assert 0 < len(rows) <= self.options.lanes
        assert len({row.lane.slot for row in rows}) == len(rows)
        self._call(Call("round", tuple(self.number[row.lane.slot] for row in rows)))
        for row in rows:
            assert row.token >= 0
            row.lane.frontier += 1
            self._check_room(row.lane)
        return [self._draw(row.lane) for row in rows]

    @property
    def free_pages(self) -> int:
        return len(self._free_pages)

    def check_integrity(self) -> None:
        assert sorted(self._free_slots) == list(range(self.options.lanes)), "a slot leaked"
        assert sorted(self._free_pages) == list(range(self.options.pages)), "a page leaked"

    def _draw(self, lane: Lane) -> int:
        number = self.number[lane.slot]
        if self.nan(number):
            return NOT_A_NUMBER
        return self.answer(number, lane.frontier - self._prompt[lane.slot])

    def _check_room(self, lane: Lane) -> None:
        assert lane.frontier <= 64 * len(lane.pages), "a token was taken in beyond the lane's pages"

    def _call(self, call: Call) -> None:
        self.calls.append(call)
        self.fault(call)

    def rounds(self) -> list[tuple[int, ...]]:
        return [call.numbers for call in self.calls if call.kind == "round"]


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A worker over a fake program on the test's own thread."""

    def __init__(self, queue_limit_s: float | None = None, **sizes: int) -> None:
        self.program, self.clock = FakeProgram(**sizes), Clock()
        self.events: list[EngineEvent] = []
        self.worker = FastWorker(
            self.program,  # type: ignore[arg-type]
            lambda token: bytes([ord("a") + token]),
            self.events.append,
            queue_limit_s,
            self.clock,
        )

    def submit(self, number: int, prompt: int = 3, max_tokens: int = 4, **members: object) -> str:
        self.worker.submit(generation(number, prompt, max_tokens, **members))
        return str(number)

    def run(self, cycles: int = 1000) -> None:
        """Cycle until there is nothing left to do."""
        for _ in range(cycles):
            self.worker.step()
            if self.worker.idle:
                return
        raise AssertionError(f"still busy after {cycles} cycles")

    @property
    def records(self) -> list[str]:
        """What was logged."""
        return [event.message for event in self.events if isinstance(event, LogRecord)]

    def of(self, number: int) -> list[EngineEvent]:
        """The events of one request."""
        return [event for event in self.events if getattr(event, "id", None) == str(number)]


def generation(number: int, prompt: int = 3, max_tokens: int = 4, **members: object) -> GenerationRequest:
    """Request ``number``: ``prompt`` tokens, an answer of ``max_tokens``."""
    tokens = np.full(prompt, number, "<i4")
    fields: dict[str, object] = {
        "id": str(number),
        "tokens": tokens.tobytes(),
        "positions": b"",
        "initial_channel": "content",
        "sampling": GREEDY,
        "max_tokens": max_tokens,
        "stop_token_ids": (),
    }
    return GenerationRequest(**(fields | members))  # type: ignore[arg-type]


def names(events: list[EngineEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


def token_ids(events: list[EngineEvent]) -> list[int]:
    return [token for event in events if isinstance(event, Delta) for token in event.token_ids]


def end(events: list[EngineEvent]) -> Finished | Failed:
    """The last event, which alone is an end."""
    ends = [event for event in events if isinstance(event, Finished | Failed)]
    assert ends == events[-1:], f"one end, as the last event: {names(events)}"
    return ends[0]


def finish(events: list[EngineEvent]) -> Finished:
    last = end(events)
    assert isinstance(last, Finished), last
    return last


def failure(events: list[EngineEvent]) -> str:
    last = end(events)
    assert isinstance(last, Failed), last
    return last.code


def whole_answer(number: int, length: int) -> list[int]:
    return [answer(number, index) for index in range(length)]
