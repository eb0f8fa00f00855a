"""Serves drawn requests through the worker with the prefix cache, and remembers how every state came to be.

A lane's history is the list of its units (chunks and single tokens), its donor's first. What is published is
remembered byte for byte, and compared when somebody resumes there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from conformance.engine.draws import RequestDraw
from conformance.engine.drive import Answer
from conformance.engine.recorder import LaneLog, RecordingProgram
from ninfer.engine.events import (
    Delta,
    EngineEvent,
    Failed,
    Finished,
    LogRecord,
    SchedulingTransition,
    Started,
)
from ninfer.engine.requests import CacheHints
from ninfer.engine.settings import CacheSettings
from ninfer.fast.engine import FastWorker
from ninfer.fast.memory.lanes import NO_PAGE, Lane, LaneMemory, Resume
from ninfer.fast.prefix.limits import CacheLimits, resolve_limits
from ninfer.fast.program.program import Program, Row, Sampler, Tokens

_PATIENCE = 200_000


@dataclass(frozen=True, slots=True)
class Unit:
    """Tokens ``begin..end`` taken in as one chunk, or (one token) in a round."""

    begin: int
    end: int
    whole: bool


@dataclass(slots=True, eq=False)
class Past:
    """How a lane's state came to be. ``mixed``: it shares pages that another cut list computed."""

    units: list[Unit] = field(default_factory=list)
    mixed: bool = False

    def copy(self) -> Past:
        return Past(list(self.units), self.mixed)


class Histories:
    """Watches one program's lanes and memory; ``restored`` counts comparisons of what came back."""

    def __init__(self, program: RecordingProgram) -> None:
        self._program, self._memory = program, program.memory
        self.lanes: dict[Lane, Past] = {}
        self._slots: dict[int, tuple[Past, bytes]] = {}
        self._pages: dict[int, bytes] = {}
        self.restored = 0
        inner = program.prefill, program.round
        memory = self._memory

        def prefill(lane: Lane, tokens: Tokens, axes: Tokens) -> npt.NDArray[np.float32]:
            begin = lane.frontier
            row = inner[0](lane, tokens, axes)
            self._past(lane).units.append(Unit(begin, lane.frontier, True))
            return row

        def round_(rows: Sequence[Row]) -> list[int]:
            drawn = inner[1](rows)
            for row in rows:
                end = row.lane.frontier
                self._past(row.lane).units.append(Unit(end - 1, end, False))
            return drawn

        program.prefill, program.round = prefill, round_  # type: ignore[method-assign]
        self._watch(memory)

    def _watch(self, memory: LaneMemory) -> None:
        inner = memory.copy_state, memory.copy_tail, memory.surrender, memory.resume, memory.swap

        def copy_state(lane: Lane) -> int:
            slot = inner[0](lane)
            self._published(lane, slot)
            return slot

        def copy_tail(lane: Lane) -> int:
            page = inner[1](lane)
            self._pages[page] = self._page(page)
            return page

        def surrender(lane: Lane) -> tuple[int, int]:
            slot, page = inner[2](lane)
            self._published(lane, slot)
            if page != NO_PAGE:
                self._pages[page] = self._page(page)
            return slot, page

        def resume(lane: Lane, source: Resume) -> None:
            inner[3](lane, source)
            past, image = self._slots[source.slot]
            assert self._image(lane.slot) == image, "a restored image is not the published one"
            for page in source.pages:
                assert self._page(page) == self._pages[page], "a shared page is not the published one"
            if source.tail != NO_PAGE:
                own = lane.pages[len(source.pages)]
                assert self._page(own) == self._pages[source.tail], "a tail is not the published one"
            self.restored += 1
            self.lanes[lane] = past.copy()

        def swap(lane: Lane, block: int, page: int) -> None:
            if self._page(lane.pages[block]) != self._page(page):
                self._past(lane).mixed = True
            inner[4](lane, block, page)

        memory.copy_state, memory.copy_tail = copy_state, copy_tail  # type: ignore[method-assign]
        memory.surrender, memory.resume = surrender, resume  # type: ignore[method-assign]
        memory.swap = swap  # type: ignore[method-assign]

    def past_of_open_lane(self) -> Past:
        """The history of the lane that was opened last."""
        lane = next(reversed(self._program._logs))
        return self._past(lane)

    def _past(self, lane: Lane) -> Past:
        return self.lanes.setdefault(lane, Past())

    def _published(self, lane: Lane, slot: int) -> None:
        self._slots[slot] = self._past(lane).copy(), self._image(slot)
        for page in lane.pages[: lane.frontier // 64]:
            self._pages[page] = self._page(page)

    def _image(self, slot: int) -> bytes:
        return hashlib.blake2b(self._program.program.states.image(slot).tobytes()).digest()

    def _page(self, page: int) -> bytes:
        digest = hashlib.blake2b()
        pages = self._program.program.pages
        for pool in pages.layers.values() if pages is not None else ():
            for plane in (pool.keys, pool.values, pool.key_scales, pool.value_scales):
                digest.update(plane[page].tobytes())
        return digest.digest()


@dataclass(slots=True, eq=False)
class CachedAnswer:
    """What one request got; ``logs`` of each lane it had, ``pasts`` their histories."""

    answer: Answer
    logs: list[LaneLog] = field(default_factory=list)
    pasts: list[Past] = field(default_factory=list)
    cached: int = 0
    pauses: int = 0

    def merge(self) -> Answer:
        """The answer with one log over all its lanes."""
        merged = LaneLog(stored=self.logs[-1].stored if self.logs else {})
        for log in self.logs:
            merged.logits += log.logits
            merged.widths += log.widths
        self.answer.log = merged
        return self.answer


class CachedService:
    """A worker with the cache over one program; requests come one call after the other or beside each
    other.
    """

    def __init__(self, program: RecordingProgram, settings: CacheSettings, chunk: int) -> None:
        self.program = program
        self.limits: CacheLimits = resolve_limits(settings, program.options.lanes, chunk)
        self.histories = Histories(program)
        self.answers: dict[str, CachedAnswer] = {}
        self.worker = FastWorker(
            program,  # type: ignore[arg-type]
            lambda token: b"x",
            self._publish,
            limits=self.limits,
            page_bytes=1024,
            report_scheduling=True,
        )

    def _publish(self, event: EngineEvent) -> None:
        if isinstance(event, LogRecord):
            assert event.level == "debug", event.message
        elif isinstance(event, Started):
            one = self.answers[event.id]
            one.cached = event.cached_tokens
            self._lane(one)
        elif isinstance(event, SchedulingTransition):
            one = self.answers[event.id]
            one.pauses += event.transition == "paused"
            if event.transition == "restored":
                self._lane(one)
        elif isinstance(event, Delta):
            self.answers[event.id].answer.tokens += event.token_ids
        elif isinstance(event, Finished | Failed):
            self.answers[event.id].answer.end = event

    def _lane(self, one: CachedAnswer) -> None:
        one.logs.append(self.program.opened)
        one.pasts.append(self.histories.past_of_open_lane())

    def submit(self, request: RequestDraw, hints: CacheHints | None = None) -> None:
        """Queue one request."""
        self.answers[request.id] = CachedAnswer(Answer(request))
        generation = request.generation
        if hints is not None:
            generation = msgspec.structs.replace(generation, cache=hints)
        self.worker.submit(generation)

    def run(self, cycles: int = _PATIENCE) -> None:
        """Until everything has ended, or so many cycles."""
        for _ in range(cycles):
            self.worker.step()
            if self.worker.idle:
                return
        assert cycles < _PATIENCE, "a request never ended"


def forced(program: Program, answer: CachedAnswer, lane_index: int) -> list[npt.NDArray[np.float32]]:
    """Logits of what one lane of a request drew, from an empty program led through the same units."""
    request = answer.answer.request
    tokens = np.array([*request.prompt, *answer.answer.tokens], np.int32)
    prompt, found = len(request.prompt), list[npt.NDArray[np.float32]]()
    counts = np.zeros(program.options.vocabulary, np.int32)
    sampler, lane = Sampler(request.sampling, counts), program.open_lane(len(tokens) + 1)
    for unit in answer.pasts[lane_index].units:
        np.add.at(counts, tokens[max(prompt, unit.begin) : unit.end], 1)
        if unit.whole:
            axes = np.tile(np.arange(unit.begin, unit.end, dtype=np.int32), (3, 1))
            row = program.prefill(lane, tokens[unit.begin : unit.end], axes)
            if unit.end == prompt:
                program.first(lane, row, sampler)
                found.append(program.logits(1)[0].copy())
        else:
            program.round([Row(lane, int(tokens[unit.begin]), sampler)])
            if unit.begin >= prompt:
                found.append(program.logits(1)[0].copy())
    program.close_lane(lane)
    return found
