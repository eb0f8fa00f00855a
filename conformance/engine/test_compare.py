"""The judge: which differences are excused, and where experts may differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conformance.engine.compare import Judge, Judged, assert_same_bits, bounds_of
from conformance.engine.draws import ModelDraw, RequestDraw
from conformance.engine.drive import Answer
from conformance.engine.models import Shelf
from conformance.engine.oracle import Oracle, Scores
from conformance.engine.recorder import Choice, LaneLog
from ninfer.engine.requests import SamplingParameters

GREEDY = SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 0.0, 0)
WIDTH = 576


def request(prompt: int = 3, length: int = 4) -> RequestDraw:
    tokens = np.random.default_rng(0).integers(0, 512, prompt).astype(np.int32)
    return RequestDraw("7", tokens, GREEDY, length, 0, None)


def judged(tokens: list[int], change: float, margin: float = 0.0) -> Judged:
    """Greedy answers: id 3 leads id 4 by ``margin``, the fast logits move both by ``change``."""
    random = np.random.default_rng(1)
    exact = random.normal(0, 1, (len(tokens), WIDTH))
    exact[:, 3], exact[:, 4] = 9 + margin, 9
    plain = (exact + random.normal(0, 1e-6, exact.shape)).astype(np.float32)
    plain[:, 3:5] = exact[:, 3:5]
    fast = plain.copy()
    fast[:, 3] -= change
    fast[:, 4] += change
    answer = Answer(request(length=len(tokens)), list(tokens), LaneLog(list(fast), {}, [1] * len(tokens)))
    return Judged(answer, fast, plain, exact, False)


def verdict(one: Judged) -> tuple[int, list[str]]:
    judge = object.__new__(Judge)
    judge.kv_format = "float32"
    report = judge.compare([one], chunk=64)
    return len(report.excuses), report.problems


def test_equal_answers_need_no_excuse() -> None:
    assert verdict(judged([3] * 50, change=0.0, margin=1.0)) == (0, [])


def test_a_near_tie_inside_the_bound_is_excused() -> None:
    one = judged([4] * 2, change=4e-6, margin=4e-6)
    assert bounds_of([one])[0].min() > 4e-6
    assert verdict(one) == (2, [])


def test_an_error_outside_the_bound_is_no_excuse() -> None:
    excuses, problems = verdict(judged([4] * 2, change=1e-3, margin=1e-3))
    assert excuses == 0
    assert len(problems) == 2
    assert problems[0].endswith("4, the reference draws 3")


def test_a_token_that_its_own_logits_do_not_draw_is_a_problem() -> None:
    _, problems = verdict(judged([4], change=0.0, margin=4e-6))
    assert "4 is not what its own logits draw" in problems[0]


def test_same_bits_means_logits_too() -> None:
    first, second = (judged([3] * 5, change=0.0).answer for _ in range(2))
    assert assert_same_bits(first, second, "here") == 5
    second.log.logits[3][500] = np.nextafter(second.log.logits[3][500], np.float32(9))
    with pytest.raises(AssertionError, match="here: request 7, logits differ at output 3"):
        assert_same_bits(first, second, "here")
    second.log.logits.pop()
    second.tokens.pop()
    with pytest.raises(AssertionError, match="differs in length"):
        assert_same_bits(first, second, "here")


def choices(scores: Scores, *layers: int) -> list[Choice]:
    """The two best experts of every token in these layers."""
    return [np.argsort(-scores[layer], 1, kind="stable")[:, :2] for layer in layers]


def routed(shelf: Shelf, gap: float) -> tuple[Judge, Answer]:
    """An answer led to expert 1 for 0 and back, where the first router scores both alike but for ``gap``."""
    model = shelf.model(ModelDraw(kind="moe"))
    weights = {dtype: dict(tensors) for dtype, tensors in model.weights.items()}
    for tensors in weights.values():
        router = tensors["text/layers/0/moe/router"].clone()
        router[0] = router[1] * (1 + gap)
        tensors["text/layers/0/moe/router"] = router
    twin = object.__new__(type(model))
    twin.draw, twin.path, twin.config, twin.weights = model.draw, model.path, model.config, weights
    one, count = request(length=30), 30
    oracle = Oracle(twin, torch.float32, "float32")
    sequence, first = one.prompt.tolist() + [5] * (count - 1), len(one.prompt) - 1
    (chosen,) = choices(oracle.forced(sequence, first).scores, 0)
    swapped = np.where(chosen == 0, 1, np.where(chosen == 1, 0, chosen))
    forced = oracle.forced(sequence, first, {0: swapped})
    routes = dict(enumerate([swapped, *choices(forced.scores, 1, 2, 3)]))
    log = LaneLog(list(forced.logits), {layer: [chosen] for layer, chosen in routes.items()}, [1] * 29)
    return Judge(twin, "float32"), Answer(one, [5] * count, log)


def test_another_choice_of_experts_inside_the_routers_bound_is_followed(shelf: Shelf) -> None:
    judge, answer = routed(shelf, gap=0.0)
    (judged,) = judge.force([answer])
    assert judged.rerouted
    assert judged.fast_errors.max() <= bounds_of([judged])[0].max()


def test_another_choice_of_experts_outside_the_routers_bound_is_refused(shelf: Shelf) -> None:
    judge, answer = routed(shelf, gap=0.01)
    with pytest.raises(AssertionError, match=r"layer 0, token \d+: experts"):
        judge.force([answer])
