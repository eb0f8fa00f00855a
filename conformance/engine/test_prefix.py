"""Reused prefixes: restored bytes, equality within one cut list, the cross-cut rule, and all of it under
pressure.
"""

from __future__ import annotations

import dataclasses
from contextlib import closing

import numpy as np
import pytest

from conformance.engine.cached import CachedAnswer, CachedService, forced
from conformance.engine.compare import Judge
from conformance.engine.draws import EngineDraw, ModelDraw, Random, RequestDraw, draw_sampling
from conformance.engine.models import Model, Shelf
from conformance.engine.recorder import RecordingProgram
from conformance.engine.report import Report, table
from ninfer.engine.events import Finished
from ninfer.engine.requests import CacheHints, SamplingParameters
from ninfer.engine.settings import CacheSettings
from tests.support.nano import VOCABULARY

GREEDY = SamplingParameters(0.0, 1.0, 20, 0.0, 0.0, 0.0, 0)
CACHE = CacheSettings(True, 24, 8, 128, 64)
OFF = CacheSettings(reuse=False)
ENGINE = EngineDraw("float32", 128, lanes=3, pages=96, threads=1)
FORMATS = ("float32", "bf16", "int8", "fp8", "nvfp4", "k8v4")


def service(program: RecordingProgram, settings: CacheSettings, engine: EngineDraw) -> CachedService:
    return CachedService(program, settings, engine.chunk)


def open_program(model: Model, engine: EngineDraw, settings: CacheSettings) -> RecordingProgram:
    slots = 0 if settings.snapshot_slots is None else settings.snapshot_slots
    return RecordingProgram(model.program(engine, snapshot_slots=slots))


def ids(random: Random, count: int) -> np.ndarray:
    return random.integers(0, VOCABULARY, count).astype(np.int32)


def talk(
    served: CachedService, random: Random, conversations: int, turns: int, sampling: SamplingParameters | None
) -> None:
    """Conversations beside each other: follow-ups, retries and branches, with hints."""
    histories = [ids(random, int(random.integers(30, 260))) for _ in range(conversations)]
    for turn in range(turns):
        for which, history in enumerate(histories):
            name = f"{which}.{turn}"
            chosen = sampling or draw_sampling(random)
            request = RequestDraw(name, history, chosen, int(random.integers(8, 90)), 0, None)
            places = sorted({int(place) for place in random.integers(1, len(history) + 1, 2)})
            hints = CacheHints(explicit=tuple(p for p in places if p < len(history)), opener=len(history) - 2)
            served.submit(request, hints)
            served.run(int(random.integers(1, 60)))
        served.run()
        for which in range(conversations):
            done = served.answers[f"{which}.{turn}"].answer
            if random.random() < 0.75:
                added = ids(random, int(random.integers(1, 150)))
                histories[which] = np.concatenate([done.request.prompt, done.tokens, added]).astype(np.int32)
            elif random.random() < 0.5:
                cut = int(random.integers(1, len(done.request.prompt) + 1))
                histories[which] = np.concatenate([done.request.prompt[:cut], ids(random, 40)])
            histories[which] = histories[which][:800]


def check_bits(model: Model, engine: EngineDraw, served: CachedService) -> tuple[int, int]:
    """Every lane against an empty program led through its history; positions compared, lanes left out."""
    positions = mixed = 0
    with closing(model.program(dataclasses.replace(engine, lanes=1), 2048)) as program:
        for one in served.answers.values():
            for index, (past, log) in enumerate(zip(one.pasts, one.logs, strict=True)):
                if past.mixed:
                    mixed += 1
                    continue
                wanted = forced(program, one, index)[-len(log.logits) :] if log.logits else []
                for ours, theirs in zip(log.logits, wanted, strict=True):
                    assert ours.tobytes() == theirs.tobytes(), f"{one.answer.request.id}: other bits"
                    positions += 1
    return positions, mixed


def finished(one: CachedAnswer) -> Finished:
    assert isinstance(one.answer.end, Finished), one.answer.end
    return one.answer.end


def judge(model: Model, kv_format: str, served: CachedService, chunk: int) -> Report:
    """The cross-cut rule: every position of every answer against the reference."""
    referee = Judge(model, kv_format)
    judged = referee.force([one.merge() for one in served.answers.values() if one.answer.tokens])
    return referee.compare(judged, chunk)


# --- restored bytes and one cut list -------------------------------------------------------------------


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize(
    "draw", [ModelDraw(layers="GA"), ModelDraw(kind="moe", recipe="q8", layers="GAG")], ids=lambda d: d.name
)
def test_a_resumed_request_has_the_bits_of_its_cut_list(
    shelf: Shelf, draw: ModelDraw, kv_format: str
) -> None:
    """Case B38: images and pages come back byte for byte, and nothing that follows knows the difference."""
    model, engine = shelf.model(draw), dataclasses.replace(ENGINE, kv_format=kv_format)
    with closing(open_program(model, engine, CACHE).program) as inner:
        served = service(RecordingProgram(inner), CACHE, engine)
        talk(served, np.random.default_rng(3), conversations=3, turns=4, sampling=None)
    positions, mixed = check_bits(model, engine, served)
    reused = sum(one.cached for one in served.answers.values())
    print(f"restored={served.histories.restored} positions={positions} mixed={mixed} reused={reused}")
    assert served.histories.restored >= 6
    assert positions > 150
    assert reused > 1000
    assert mixed <= len(served.answers) / 3


@pytest.mark.clause("CACHE-008")
def test_the_last_token_decides_where_a_prompt_resumes(shelf: Shelf) -> None:
    model = shelf.model(ModelDraw(layers="GA"))
    random = np.random.default_rng(1)
    prompt = ids(random, 1000)
    changed = prompt.copy()
    changed[10] = (changed[10] + 1) % VOCABULARY
    with closing(open_program(model, ENGINE, CACHE).program) as inner:
        served = service(RecordingProgram(inner), CACHE, ENGINE)
        for name, tokens in (("a", prompt), ("b", changed), ("c", prompt)):
            served.submit(RequestDraw(name, tokens, GREEDY, 4, 0, None))
            served.run()
    cached = {name: one.cached for name, one in served.answers.items()}
    assert cached["a"] == 0
    assert cached["b"] < 10
    assert cached["c"] >= 896
    assert served.answers["a"].answer.tokens == served.answers["c"].answer.tokens


# --- across cut lists ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_format", FORMATS)
def test_answers_over_reused_prefixes_obey_the_cross_cut_rule(shelf: Shelf, kv_format: str) -> None:
    report = cross_cut(shelf, kv_format, seed=5, conversations=3, turns=3)
    print(table([report]))
    assert report.verdict() == []


def cross_cut(shelf: Shelf, kv_format: str, seed: int, conversations: int, turns: int) -> Report:
    model, engine = shelf.model(ModelDraw(layers="GGA")), dataclasses.replace(ENGINE, kv_format=kv_format)
    with closing(open_program(model, engine, CACHE).program) as inner:
        served = service(RecordingProgram(inner), CACHE, engine)
        talk(served, np.random.default_rng(seed), conversations, turns, None)
    assert served.histories.restored > 0
    return judge(model, kv_format, served, engine.chunk)


def pressed(model: Model, kv_format: str, share: float, settings: CacheSettings) -> CachedService:
    """Eight long requests over ``share`` of the pages that they need together."""
    random = np.random.default_rng(11)
    requests = [
        RequestDraw(str(index), ids(random, 150), draw_sampling(random), 180, 0, None) for index in range(8)
    ]
    pages = round(8 * -(-330 // 64) * share)
    engine = EngineDraw(kv_format, 128, lanes=8, pages=max(pages, 6), threads=1)
    with closing(open_program(model, engine, settings).program) as inner:
        served = service(RecordingProgram(inner), settings, engine)
        for request in requests:
            served.submit(request)
        served.run()
    return served


@pytest.mark.clause("EXEC-013")
@pytest.mark.clause("CACHE-004")
@pytest.mark.clause("JLOG-064")
@pytest.mark.parametrize("settings", [CACHE, OFF], ids=["cache", "off"])
def test_a_quarter_of_the_memory_changes_no_answer(shelf: Shelf, settings: CacheSettings) -> None:
    """All complete, the oldest is never paused, and every token is the unpressed run's or a counted near
    tie.
    """
    model = shelf.model(ModelDraw(layers="GGA"))
    free, tight = (pressed(model, "float32", share, settings) for share in (2.0, 0.25))
    assert not any(one.pauses for one in free.answers.values())
    pauses = sum(one.pauses for one in tight.answers.values())
    assert pauses > 0
    assert tight.answers["0"].pauses == 0
    for one in tight.answers.values():
        assert (finished(one).reason, len(one.answer.tokens)) == ("length", 180)
    same = sum(free.answers[name].answer.tokens == one.answer.tokens for name, one in tight.answers.items())
    report = judge(model, "float32", tight, 128)
    print(f"pauses={pauses} answers_equal_to_unpressed={same}/8 {table([report])}")
    assert report.verdict() == []
    assert same >= 7, "a near tie may turn one answer, not many"


@pytest.mark.campaign
@pytest.mark.parametrize("kv_format", FORMATS)
def test_the_cross_cut_rule_over_many_conversations(shelf: Shelf, kv_format: str, campaign_seed: int) -> None:
    """At most one excuse in 20,000 positions with float32 caches."""
    total = Report(kv_format)
    for index in range(15):
        total.merge(cross_cut(shelf, kv_format, campaign_seed + index, conversations=4, turns=8))
    print(table([total]))
    assert total.positions >= 20_000
    assert total.verdict() == []
