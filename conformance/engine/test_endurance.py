"""Five hundred requests through the real program while things break: nothing leaks, nothing is wrong."""

from __future__ import annotations

import dataclasses
from collections import Counter
from contextlib import closing

import numpy as np
import pytest

from conformance.engine.draws import EngineDraw, ModelDraw, Random, RequestDraw, draw_sampling
from conformance.engine.drive import Answer, disturb, serve
from conformance.engine.models import Model, Shelf
from conformance.engine.recorder import RecordingProgram
from ninfer.engine.events import Failed, Finished
from ninfer.fast.program.program import Program
from tests.support.nano import VOCABULARY

REQUESTS = 500
ENGINE = EngineDraw("bf16", 64, lanes=6, pages=20, threads=1)


def draw_requests(random: Random) -> list[RequestDraw]:
    return [
        RequestDraw(
            str(index),
            random.integers(0, VOCABULARY, int(random.integers(1, 100))).astype(np.int32),
            draw_sampling(random),
            int(random.integers(0, 24)),
            arrives=int(random.integers(0, 1500)),
            cancel_after=int(random.integers(0, 12)) if random.random() < 0.25 else None,
        )
        for index in range(REQUESTS)
    ]


def break_now_and_then(program: Program, random: Random) -> Counter[str]:
    """Fail before, between and after operations, and in memory; counts what was done."""
    done: Counter[str] = Counter()
    runner = program._runner
    inner_run, inner_open, inner_round = runner.run, program.open_lane, program.round

    def run(*arguments: int) -> None:
        if random.random() < 0.001:
            done["memory"] += 1
            raise MemoryError("no room")
        inner_run(*arguments)
        if random.random() < 0.001:
            done["check"] += 1
            raise AssertionError("ours")

    def open_lane(ceiling: int = 0) -> object:
        if random.random() < 0.01:
            done["admission"] += 1
            raise MemoryError("no room")
        return inner_open(ceiling)

    def round_(rows: list) -> list[int]:
        if random.random() < 0.01:
            done["state"] += 1
            program.states.image(rows[0].lane.slot)[:] = 0xFF
        return inner_round(rows)

    runner.run = run  # type: ignore[method-assign]
    program.open_lane = open_lane  # type: ignore[method-assign, assignment]
    program.round = round_  # type: ignore[method-assign, assignment]
    return done


def expected_tokens(model: Model, requests: list[RequestDraw], random: Random) -> dict[str, Answer]:
    """The same requests where nothing breaks and nobody cancels."""
    with closing(model.program(ENGINE)) as program:
        disturb(program, random)
        return serve(
            RecordingProgram(program),
            [dataclasses.replace(request, cancel_after=None) for request in requests],
        )


def test_five_hundred_requests_with_cancellations_and_faults(shelf: Shelf) -> None:
    run(shelf, np.random.default_rng(4))


@pytest.mark.campaign
def test_five_hundred_requests_from_a_fresh_seed(shelf: Shelf, campaign_seed: int) -> None:
    run(shelf, np.random.default_rng(campaign_seed))


def run(shelf: Shelf, random: Random) -> None:
    model = shelf.model(ModelDraw(layers="GA"))
    requests = draw_requests(random)
    expected = expected_tokens(model, requests, random)
    with closing(model.program(ENGINE)) as program:
        disturb(program, random)
        done = break_now_and_then(program, random)
        broken = serve(RecordingProgram(program), requests, quiet=False)
        program.check_integrity()
    outcomes: Counter[str] = Counter()
    for name, answer in broken.items():
        right, request = expected[name].tokens, answer.request
        assert answer.tokens == right[: len(answer.tokens)], f"request {name} is wrong"
        if isinstance(answer.end, Finished):
            outcomes[answer.end.reason] += 1
            assert answer.end.usage.completion_tokens == len(answer.tokens)
            if answer.end.reason == "cancelled":
                assert request.cancel_after is not None
            else:
                assert len(answer.tokens) == len(right) == request.max_tokens
        else:
            assert isinstance(answer.end, Failed)
            outcomes[answer.end.code] += 1
    print(f"faults={dict(done)} outcomes={dict(outcomes)}")
    assert set(outcomes) == {"length", "cancelled", "insufficient_memory", "internal_error"}
    assert set(done) == {"memory", "check", "admission", "state"}
    assert sum(outcomes.values()) == REQUESTS
