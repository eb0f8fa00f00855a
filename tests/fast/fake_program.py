"""A program that computes nothing: scripted tokens and failures over honest accounts of lanes and pages."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from ninfer.engine.events import Delta, EngineEvent, Failed, Finished, LogRecord
from ninfer.engine.requests import GenerationRequest, SamplingParameters
from ninfer.engine.settings import CacheSettings
from ninfer.fast.engine import FastWorker
from ninfer.fast.memory.lanes import Lane, LaneMemory
from ninfer.fast.memory.pages import PageOwners
from ninfer.fast.ops.select.contract import NOT_A_NUMBER
from ninfer.fast.prefix.limits import resolve_limits
from ninfer.fast.program.program import ProgramOptions, Row, Sampler, Tokens

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


class FakeStates:
    """State images of three words: the sequence's number, its length, and a checksum of all its tokens."""

    def __init__(self, slots: int) -> None:
        self.slots, self.image_bytes = slots, 24
        self.images = np.zeros((slots, 3), np.int64)
        self._free = list(range(slots))

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        slot = self.take()
        self.images[slot] = 0
        return slot

    def take(self) -> int:
        return self._free.pop()

    def free(self, slot: int) -> None:
        assert slot not in self._free, "a slot is freed twice"
        self._free.append(slot)

    def copy(self, source: int, target: int) -> None:
        self.images[target] = self.images[source]


class FakePages(PageOwners):
    """Pages that hold token ids."""

    def __init__(self, pages: int) -> None:
        super().__init__(pages)
        self.tokens = np.full((pages, 64), -1, np.int32)

    def copy(self, source: int, target: int) -> None:
        self.tokens[target] = self.tokens[source]


class FakeProgram:
    """Request ``n`` is known by its first prompt token, n. ``fault`` may raise before any call is done.

    ``nan`` says which rows come back as no number. The accounts fail a test where a real program would
    corrupt memory: a lane's pages must hold the very tokens of which its state is.
    """

    def __init__(
        self,
        lanes: int = 2,
        pages: int = 64,
        chunk: int = 64,
        max_context: int = 1024,
        snapshot_slots: int = 0,
    ) -> None:
        self.options = ProgramOptions(
            lanes, max_context, pages, "float32", chunk, 1, VOCABULARY, snapshot_slots=snapshot_slots
        )
        self.config = SimpleNamespace(vocab=1 << 20)
        self.last_unit = (0.0, 0.0)
        self.calls: list[Call] = []
        self.fault: Callable[[Call], None] = lambda call: None
        self.nan: Callable[[int], bool] = lambda number: False
        self.answer = answer
        self.states, self.pages = FakeStates(lanes + snapshot_slots), FakePages(pages)
        self.memory = LaneMemory(self.states, self.pages, max_context)  # type: ignore[arg-type]
        self._number: dict[Lane, int] = {}
        self._prompt: dict[int, int] = {}

    def open_lane(self, ceiling: int = 0) -> Lane:
        self._call(Call("open", (), ceiling))
        return self.memory.open(ceiling)

    def close_lane(self, lane: Lane) -> None:
        self._call(Call("close", (self._number.pop(lane, -1),)))
        self.memory.close(lane)

    def prefill(self, lane: Lane, tokens: Tokens, axes: Tokens) -> np.ndarray:
        assert 0 < len(tokens) <= self.options.prefill_chunk
        assert axes.shape == (3, len(tokens))
        if lane.frontier == 0:
            self.states.images[lane.slot, 0] = tokens[0]
        self._number[lane] = int(self.states.images[lane.slot, 0])
        self._call(Call("prefill", (self._number[lane],), len(tokens)))
        for token in tokens:
            self._take_in(lane, int(token))
        return np.zeros(1, np.float32)

    def first(self, lane: Lane, row: np.ndarray, sampler: Sampler) -> int:
        self._call(Call("first", (self._number[lane],)))
        self._prompt[self._number[lane]] = lane.frontier
        return self._draw(lane)

    def round(self, rows: Sequence[Row]) -> list[int]:
        assert 0 < len(rows) <= self.options.lanes
        assert len({row.lane.slot for row in rows}) == len(rows)
        for row in rows:
            self._number[row.lane] = int(self.states.images[row.lane.slot, 0])
        self._call(Call("round", tuple(self._number[row.lane] for row in rows)))
        for row in rows:
            assert row.token >= 0
            self._take_in(row.lane, row.token)
        return [self._draw(row.lane) for row in rows]

    @property
    def free_pages(self) -> int:
        return self.memory.free_pages

    def check_integrity(self, cached_pages: int = 0, cached_slots: int = 0) -> None:
        self.memory.check_idle(cached_pages, cached_slots)

    def held(self, lane: Lane) -> np.ndarray:
        """The tokens in the lane's pages up to its frontier, as its block table finds them."""
        pages = lane.block_table[: -(-lane.frontier // 64)]
        return self.pages.tokens[pages].reshape(-1)[: lane.frontier]

    def check_lane(self, lane: Lane) -> None:
        """State and pages are of one sequence."""
        _, length, checksum = self.states.images[lane.slot]
        assert length == lane.frontier, "a state is not where its lane is"
        assert checksum == zlib.crc32(self.held(lane).tobytes()), "pages and state are of two sequences"

    def _take_in(self, lane: Lane, token: int) -> None:
        if lane.frontier % 64 == 0:
            self.check_lane(lane)
        assert lane.frontier < 64 * len(lane.pages), "a token was taken in beyond the lane's pages"
        page = lane.block_table[lane.frontier // 64]
        assert self.memory.pages.owners(int(page)) == 1, "a shared page is written"
        self.pages.tokens[page, lane.frontier % 64] = token
        lane.frontier += 1
        state = self.states.images[lane.slot]
        state[1] += 1
        state[2] = zlib.crc32(np.int32(token).tobytes(), int(state[2]))

    def _draw(self, lane: Lane) -> int:
        self.check_lane(lane)
        number = self._number[lane]
        if self.nan(number):
            return NOT_A_NUMBER
        return self.answer(number, lane.frontier - self._prompt[number])

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

    def __init__(
        self, queue_limit_s: float | None = None, cache: CacheSettings | None = None, **sizes: int
    ) -> None:
        chunk, lanes = sizes.get("chunk", 64), sizes.get("lanes", 2)
        limits = None if cache is None else resolve_limits(cache, lanes, chunk)
        slots = 0 if limits is None else limits.snapshot_slots
        self.program, self.clock = FakeProgram(**sizes, snapshot_slots=slots), Clock()
        self.events: list[EngineEvent] = []
        self.worker = FastWorker(
            self.program,  # type: ignore[arg-type]
            lambda token: bytes([ord("a") + token]),
            self.events.append,
            queue_limit_s,
            self.clock,
            limits=limits,
            page_bytes=256,
            report_scheduling=True,
        )

    def submit(self, number: int, prompt: int = 3, max_tokens: int = 4, **members: object) -> str:
        self.worker.submit(generation(number, prompt, max_tokens, **members))
        return str(number)

    def run(self, cycles: int = 1000) -> None:
        """Cycle until there is nothing left to do."""
        for _ in range(cycles):
            self.worker.step()
            if self.worker.idle:
                self.worker._cache.index.check_integrity()
                return
        raise AssertionError(f"still busy after {cycles} cycles")

    @property
    def records(self) -> list[str]:
        """What was logged."""
        return [event.message for event in self.events if isinstance(event, LogRecord)]

    def of(self, number: int) -> list[EngineEvent]:
        """The events of one request, by its number."""
        return self.of_name(str(number))

    def of_name(self, name: str) -> list[EngineEvent]:
        """The events of one request, by its id."""
        return [event for event in self.events if getattr(event, "id", None) == name]


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
