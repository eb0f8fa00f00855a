"""A margin is honest: no change of logits below half of it turns a draw, and one just above it can."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.engine.draws import draw_sampling
from conformance.engine.margins import margin
from ninfer.sampling.draw import select_token
from ninfer.sampling.parameters import SamplingParameters
from ninfer.sampling.philox import uniform

GREEDY = SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 0.0, 0)
NONE = np.zeros(4, np.int32)


@given(st.integers(0, 2**32 - 1))
def test_no_smaller_change_turns_a_draw(seed: int) -> None:
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, 64).astype(np.float32)
    counts = random.integers(0, 3, 64).astype(np.int32)
    parameters, position = draw_sampling(random), int(random.integers(0, 1000))
    close = margin(logits.astype(np.float64), parameters, counts, position)
    token = select_token(logits, parameters, counts, position)
    # Float32 penalties round, so a little of the margin belongs to them.
    size = max(0.0, 0.98 * close / 2 - 1e-6)
    for _ in range(8):
        change = random.choice([-size, size], 64).astype(np.float32)
        assert select_token(logits + change, parameters, counts, position) == token


def turned(logits: list[float], parameters: SamplingParameters, position: int, change: list[float]) -> bool:
    """Whether moving each logit by ``change`` times half the margin, and a little, turns the draw."""
    row = np.array(logits)
    half = margin(row, parameters, NONE, position) / 2
    assert 0 < half < 1
    moved = (row + np.array(change) * half * 1.001).astype(np.float32)
    before = select_token(row.astype(np.float32), parameters, NONE, position)
    return select_token(moved, parameters, NONE, position) != before


def test_greedy_turns_at_the_gap() -> None:
    assert margin(np.array([1.0, 1.25, 0.0, 0.5]), GREEDY, NONE, 0) == 0.25
    assert turned([1.0, 1.25, 0.0, 0.5], GREEDY, 0, [1, -1, 0, 0])


def test_penalties_count() -> None:
    parameters = SamplingParameters(0.0, 1.0, 0, 0.0, 0.5, 0.25, 0)
    counts = np.array([0, 2, 0, 0], np.int32)
    assert margin(np.array([0.0, 1.125, 0.0, -3.0]), parameters, counts, 0) == 0.125
    assert margin(np.array([0.0, 1.5, 0.25, -3.0]), parameters, counts, 0) == 0.25


def _sampled(**changes: float) -> SamplingParameters:
    fields = {
        "temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": 3,
    }  # fmt: skip
    return SamplingParameters(**(fields | changes))  # type: ignore[arg-type]


def _first_share(u: float, temperature: float = 0.7) -> float:
    """The first logit over a second of 0 at which the running sum stands exactly at ``u``."""
    return temperature * math.log(u / (1 - u))


def test_the_running_sum_turns_at_its_edge() -> None:
    u = uniform(3, 5, "token")
    lead = _first_share(u) + 0.01
    assert margin(np.array([lead, 0.0, -90, -91]), _sampled(top_k=2), NONE, 5) == pytest.approx(0.01)
    assert turned([lead, 0.0, -90, -91], _sampled(top_k=2), 5, [-1, 1, 0, 0])


@pytest.mark.parametrize(
    ("logits", "parameters", "edge", "change"),
    [
        # The smallest prefix reaching 0.8 is one candidate, by a hair.
        ([_first_share(0.8) + 0.02, 0.0, -90, -91], _sampled(top_p=0.8), 0.02, [-1, 1, 0, 0]),
        # The second candidate is just above a tenth of the first.
        ([0.7 * math.log(10) - 0.02, 0.0, -90, -91], _sampled(min_p=0.1), 0.02, [1, -1, 0, 0]),
        # The second and third change places at the edge of the top two.
        ([0.5, 0.02, 0.0, -90], _sampled(top_k=2), 0.02, [0, -1, 1, 0]),
    ],
)
def test_what_may_be_drawn_turns_at_its_edge(
    logits: list[float], parameters: SamplingParameters, edge: float, change: list[float]
) -> None:
    positions = [p for p in range(3000) if margin(np.array(logits), parameters, NONE, p) > 0.9 * edge]
    assert margin(np.array(logits), parameters, NONE, positions[0]) == pytest.approx(edge)
    assert any(turned(logits, parameters, position, change) for position in positions)
