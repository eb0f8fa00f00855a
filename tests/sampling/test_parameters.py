"""Ranges of the sampler's parameters, as the contract states them."""

from __future__ import annotations

import math

import pytest

from ninfer.sampling.parameters import candidate_cap, sampling_range

BOUNDS = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "top_k": (0, 20),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "seed": (-(2**63), 2**63 - 1),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_are_allowed_and_what_lies_beyond_is_not(name: str) -> None:
    low, high = BOUNDS[name]
    step = 1 if name in ("top_k", "seed") else 0.001
    problem = sampling_range(name).problem
    assert problem(low) is None
    assert problem(high) is None
    assert problem(low - step) is not None
    assert problem(high + step) is not None


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("value", [None, "1", True, [], math.nan, math.inf])
def test_other_types_and_non_finite_numbers_are_refused(name: str, value: object) -> None:
    assert sampling_range(name).problem(value) is not None


@pytest.mark.parametrize("name", ["top_k", "seed"])
def test_integers_only(name: str) -> None:
    assert "integer" in (sampling_range(name).problem(1.5) or "")


def test_message_names_range_and_value() -> None:
    assert sampling_range("top_k").problem(21) == "must be an integer in 0..20, not 21"
    assert sampling_range("min_p").problem("x") == "must be a number in 0..1, not 'x'"
    assert sampling_range("seed").problem(2**63) == f"must be a signed 64-bit integer, not {2**63}"


def test_cap_is_twenty() -> None:
    assert candidate_cap() == 20
