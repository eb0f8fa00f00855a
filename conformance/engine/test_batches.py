"""A request's tokens do not depend on its company, and a long prompt does not hold the others up."""

from __future__ import annotations

import dataclasses
import itertools
import secrets
import time
from contextlib import closing

import numpy as np
import pytest

from conformance.engine.compare import assert_same_bits
from conformance.engine.draws import EngineDraw, ModelDraw, RequestDraw, draw_sampling
from conformance.engine.drive import Answer, disturb, serve
from conformance.engine.models import Model, Shelf
from conformance.engine.recorder import RecordingProgram
from ninfer.engine.events import Delta, EngineEvent, Progress
from ninfer.engine.requests import SamplingParameters
from ninfer.fast.engine import FastWorker
from ninfer.fast.memory.lanes import Lane
from ninfer.fast.program.program import Tokens
from tests.support.nano import VOCABULARY

GREEDY = SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 0.0, 0)
SEEDED = SamplingParameters(0.9, 0.95, 20, 0.0, 1.0, 0.2, 7)
ENGINE = EngineDraw("float32", 64, lanes=8, pages=64, threads=1)


def request(name: str, sampling: SamplingParameters, length: int = 90, output: int = 40) -> RequestDraw:
    prompt = np.random.default_rng(int(name)).integers(0, VOCABULARY, length).astype(np.int32)
    return RequestDraw(name, prompt, sampling, output, 0, None)


def answers(model: Model, requests: list[RequestDraw], engine: EngineDraw = ENGINE) -> dict[str, Answer]:
    with closing(model.program(engine)) as program:
        disturb(program, np.random.default_rng(len(requests)))
        return serve(RecordingProgram(program), requests)


@pytest.mark.clause("EXEC-012")
@pytest.mark.clause_early("HTTP-025")
@pytest.mark.parametrize("kv_format", ["float32", "bf16", "int8"])
@pytest.mark.parametrize(
    "draw", [ModelDraw(recipe="q4"), ModelDraw(kind="moe", recipe="groupwise-int")], ids=lambda d: d.name
)
def test_alone_and_beside_seven_others(shelf: Shelf, draw: ModelDraw, kv_format: str) -> None:
    model, engine = shelf.model(draw), dataclasses.replace(ENGINE, kv_format=kv_format)
    random = np.random.default_rng(0)
    company = [
        request(str(index), draw_sampling(random), int(random.integers(1, 200)), 20 + 6 * index)
        for index in range(8)
    ]
    together = answers(model, company, engine)
    assert max(together["7"].log.widths) == 8
    for one in company[::3]:
        alone = answers(model, [one], engine)[one.id]
        assert set(alone.log.widths) == {1}
        assert_same_bits(alone, together[one.id], "beside seven others")


def test_a_seeded_request_does_not_care_whether_its_mates_have_seeds(shelf: Shelf) -> None:
    """Case B44f: a request without a seed gets a fresh one, and nobody else's tokens move."""
    model, seeded = shelf.model(ModelDraw()), request("1", SEEDED)
    runs = []
    for seeds in (lambda index: 100 + index, lambda index: secrets.randbits(63), None):
        mates = [
            request(
                str(index),
                GREEDY if seeds is None else SamplingParameters(1.0, 1.0, 0, 0.0, 0.0, 0.0, seeds(index)),
            )
            for index in range(2, 9)
        ]
        runs.append(answers(model, [*mates[:3], seeded, *mates[3:]]))
    for run in runs[1:]:
        assert_same_bits(runs[0]["1"], run["1"], "other seeds beside it")
    assert runs[0]["2"].tokens != runs[1]["2"].tokens, "fresh seeds draw other tokens"


def test_threads_and_chunk_buffers_do_not_matter(shelf: Shelf) -> None:
    model = shelf.model(ModelDraw(kind="moe", recipe="q8", shape="odd"))
    company = [request(str(index), SEEDED, 60 + 9 * index, 24) for index in range(4)]
    runs = [answers(model, company, dataclasses.replace(ENGINE, threads=threads)) for threads in (1, 2)]
    for name, answer in runs[0].items():
        assert_same_bits(answer, runs[1][name], "with two threads")


class _Clocked:
    """A worker, when every event came, and how long every chunk took."""

    def __init__(self, program: RecordingProgram) -> None:
        self.events: list[tuple[float, EngineEvent]] = []
        self.chunk_s: list[float] = []
        inner = program.prefill

        def prefill(lane: Lane, tokens: Tokens, axes: Tokens) -> np.ndarray:
            began = time.monotonic()
            row = inner(lane, tokens, axes)
            self.chunk_s.append(time.monotonic() - began)
            return row

        program.prefill = prefill  # type: ignore[method-assign]
        self.worker = FastWorker(program, lambda token: b"x", self._publish)  # type: ignore[arg-type]

    def _publish(self, event: EngineEvent) -> None:
        self.events.append((time.monotonic(), event))

    def times(self, name: str, kind: type) -> list[float]:
        return [at for at, event in self.events if isinstance(event, kind) and event.id == name]


def test_two_streams_flow_while_a_long_prompt_prefills(shelf: Shelf) -> None:
    """No gap is longer than two chunks, and a short request starts before the prefill ends (case B44i)."""
    long, chunk, context = 8000, 256, 8192
    engine = EngineDraw("float32", chunk, lanes=4, pages=4 * context // 64, threads=1)
    with closing(shelf.model(ModelDraw()).program(engine, context)) as program:
        clocked = _Clocked(RecordingProgram(program))
        worker = clocked.worker
        for name in ("1", "2"):
            worker.submit(request(name, SEEDED, 20, 4000).generation)
        for _ in range(10):
            worker.step()
        worker.submit(request("3", GREEDY, long, 1).generation)
        for _ in range(5):
            worker.step()
        worker.submit(request("4", GREEDY, 100, 1).generation)
        while not clocked.times("3", Delta):
            worker.step()
    chunks = clocked.times("3", Progress)
    assert len(chunks) == -(-long // chunk)
    assert clocked.times("4", Delta)[0] < chunks[-1]
    longest = max(clocked.chunk_s)
    for name in ("1", "2"):
        during = [at for at in clocked.times(name, Delta) if at >= chunks[0]]
        gaps = [after - before for before, after in itertools.pairwise(during)]
        assert len(gaps) >= len(chunks) - 2
        print(f"stream={name} longest_gap_ms={1000 * max(gaps):.1f} longest_chunk_ms={1000 * longest:.1f}")
        assert max(gaps) <= 2 * longest
    # Whatever the clock says: between two rounds there is one chunk at most.
    kinds = [type(event) for _, event in clocked.events if isinstance(event, Progress | Delta)]
    started = kinds.index(Delta)
    assert all(pair != (Progress, Progress) for pair in itertools.pairwise(kinds[started:]))
