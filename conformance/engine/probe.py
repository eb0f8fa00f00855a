"""The smallest campaign: a few requests on fewer lanes, made so that every mechanism takes part.

Prompts end before, at and behind page and chunk borders; draws are greedy, penalised and sampled; slots and
pages are used twice. A planted fault must show here.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np

from conformance.engine.compare import Judge
from conformance.engine.draws import EngineDraw, RequestDraw
from conformance.engine.drive import Answer, disturb, serve
from conformance.engine.models import Model
from conformance.engine.planting import Fault
from conformance.engine.recorder import RecordingProgram
from ninfer.engine.requests import SamplingParameters
from tests.support.nano import VOCABULARY

CHUNK, LANES, OUTPUT, LONG_CONTEXT = 64, 3, 32, 4352


def probe(
    model: Model, fault: Fault | None = None, kv_format: str = "float32", long: bool = False
) -> list[str]:
    """Every objection to the answers; none for a sound program.

    ``long``: one request whose context crosses the border of an attention split.
    """
    requests = _long_request() if long else _requests()
    context = LONG_CONTEXT if long else 512
    engine = EngineDraw(kv_format, 512 if long else CHUNK, LANES, LANES * context // 64, threads=1)
    with closing(model.program(engine, context)) as program:
        recording = RecordingProgram(program)
        disturb(program, np.random.default_rng(0), stale=True)
        if fault is not None:
            fault.plant(program)
        try:
            answers = serve(recording, requests)
        except AssertionError as error:  # the engine's own checks found it
            return [f"while serving: {error}"]
        return _objections(model, kv_format, answers)


def _objections(model: Model, kv_format: str, answers: dict[str, Answer]) -> list[str]:
    judge = Judge(model, kv_format)
    try:
        return judge.compare(judge.force(list(answers.values())), CHUNK).verdict()
    except AssertionError as error:  # experts or codes that are no near ties
        return [str(error)]


def _requests() -> list[RequestDraw]:
    random = np.random.default_rng(7)
    lengths = (50, 130, 200, 63, 5)
    samplers = (
        SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 0.0, 1),
        SamplingParameters(1.0, 0.95, 20, 0.0, 1.5, 0.5, (3 << 32) + 5),
        SamplingParameters(0.0, 1.0, 0, 0.0, 1.2, 0.3, 2),
        SamplingParameters(1.5, 1.0, 0, 0.1, 0.0, 0.0, (9 << 40) + 7),
        SamplingParameters(0.8, 0.9, 3, 0.0, 2.0, 0.0, (1 << 63) + 11),
    )
    return [
        RequestDraw(str(index), _prompt(random, length), sampler, OUTPUT, 0, None)
        for index, (length, sampler) in enumerate(zip(lengths, samplers, strict=True))
    ]


def _long_request() -> list[RequestDraw]:
    greedy = SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 0.0, 1)
    return [RequestDraw("long", _prompt(np.random.default_rng(8), 4110), greedy, 16, 0, None)]


def _prompt(random: np.random.Generator, length: int) -> np.ndarray:
    return random.integers(0, VOCABULARY, length).astype(np.int32)
