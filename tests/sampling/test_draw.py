"""The draw itself: keyed by position, true to the distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.sampling.distribution import Distribution
from ninfer.sampling.draw import pick, select_token
from ninfer.sampling.parameters import SamplingParameters
from ninfer.sampling.philox import uniform

LOGITS = np.random.default_rng(3).normal(0, 2, 300).astype(np.float32)


def sampling(temperature: float = 1.0, seed: int = 5, **changes: float) -> SamplingParameters:
    values = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    return SamplingParameters(temperature=temperature, seed=seed, **(values | changes))


def test_frequencies_follow_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05])).astype(np.float32)
    counts = np.bincount([select_token(logits, sampling(), None, p) for p in range(20000)], minlength=4)
    expected = 20000 * np.array([0.5, 0.3, 0.15, 0.05])
    assert ((counts - expected) ** 2 / expected).sum() < 20  # 3 degrees of freedom: p = 0.0002


def test_a_draw_depends_on_seed_and_position_only() -> None:
    forward = [select_token(LOGITS, sampling(), None, p) for p in range(100)]
    backward = [select_token(LOGITS, sampling(), None, p) for p in reversed(range(100))]
    assert forward == backward[::-1]
    other = [select_token(LOGITS, sampling(seed=6), None, p) for p in range(100)]
    assert forward != other
    assert len(set(forward)) > 5


def test_temperature_zero_needs_no_seed() -> None:
    drawn = {select_token(LOGITS, sampling(0.0, seed), None, p) for seed in range(5) for p in range(5)}
    assert drawn == {int(LOGITS.argmax())}


@pytest.mark.clause_early("OPT-087")
def test_top_k_zero_draws_as_the_cap_does() -> None:
    zero = [select_token(LOGITS, sampling(1.5, top_k=0), None, p) for p in range(300)]
    twenty = [select_token(LOGITS, sampling(1.5, top_k=20), None, p) for p in range(300)]
    five = [select_token(LOGITS, sampling(1.5, top_k=5), None, p) for p in range(300)]
    assert zero == twenty != five


def test_penalties_count_what_was_committed() -> None:
    counts = np.zeros(300, np.int32)
    drawn = []
    for position in range(10):
        token = select_token(LOGITS, sampling(0.0, presence_penalty=2.0), counts, position)
        counts[token] += 1
        drawn.append(token)
    assert len(set(drawn)) > 1
    penalised = LOGITS.copy()
    for token in drawn:  # each token was the best when its earlier choices had been lowered once
        assert token == int(penalised.argmax())
        penalised[token] = LOGITS[token] - np.float32(2.0)


def test_the_number_is_the_token_purpose_s_first() -> None:
    logits = np.zeros(2, np.float32)
    for position in range(50):
        expected = 0 if uniform(5, position, "token", 0) < 0.5 else 1
        assert select_token(logits, sampling(), None, position) == expected


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=20), st.floats(0, 1, exclude_max=True))
def test_pick_walks_the_cumulative_sum(weights: list[float], u: float) -> None:
    weights = sorted((w / sum(weights) for w in weights), reverse=True)
    distribution = Distribution(tuple(range(100, 100 + len(weights))), tuple(weights))
    token = pick(distribution, u) - 100
    assert sum(weights[:token]) <= u or token == 0
    assert u < sum(weights[: token + 1]) or token == len(weights) - 1


def test_rounding_that_leaves_nobody_leaves_the_last() -> None:
    assert pick(Distribution((4, 9), (0.5, 0.4999)), 0.99999) == 9
