"""Precedence of the sampler's sources, and seeds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.model.presets import Preset
from ninfer.sampling.parameters import SamplingOverrides, sampling_range
from ninfer.sampling.resolve import random_seed, resolve_sampling, unsigned_seed

THINKING = Preset(1.0, 0.95, 20, 0.0, 0.0, 0.0)
NON_THINKING = Preset(0.7, 0.8, 20, 0.0, 1.5, 0.0)
NONE = SamplingOverrides()
FIELDS = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty")


def no_fresh_seed() -> int:
    raise AssertionError("a seed was given")


@pytest.mark.clause_early("PRESET-007")
def test_request_beats_process_beats_preset() -> None:
    process, request = SamplingOverrides(top_p=0.5), SamplingOverrides(temperature=0.2)
    found = resolve_sampling(THINKING, process, request, False, 1, no_fresh_seed)
    assert (found.temperature, found.top_p) == (0.2, 0.5)
    assert (found.top_k, found.min_p, found.presence_penalty, found.frequency_penalty) == (20, 0, 0, 0)


@pytest.mark.clause_early("PRESET-008", "OPT-092")
def test_greedy_comes_last() -> None:
    process, request = SamplingOverrides(temperature=0.8), SamplingOverrides(temperature=1.0, top_p=0.3)
    found = resolve_sampling(THINKING, process, request, True, 1, no_fresh_seed)
    assert found.temperature == 0
    assert found.top_p == 0.3


@pytest.mark.clause_early("PRESET-009")
def test_one_override_leaves_the_preset_in_both_modes() -> None:
    process = SamplingOverrides(presence_penalty=0.1)
    plain = resolve_sampling(NON_THINKING, process, NONE, False, 1, no_fresh_seed)
    assert (plain.temperature, plain.top_p, plain.presence_penalty) == (0.7, 0.8, 0.1)
    thinking = resolve_sampling(THINKING, process, NONE, False, 1, no_fresh_seed)
    assert (thinking.temperature, thinking.top_p, thinking.presence_penalty) == (1.0, 0.95, 0.1)


def test_zero_is_a_value_not_an_absence() -> None:
    process = SamplingOverrides(temperature=0.5, top_k=5, presence_penalty=1.0)
    request = SamplingOverrides(temperature=0.0, top_k=0, presence_penalty=0.0)
    found = resolve_sampling(NON_THINKING, process, request, False, 1, no_fresh_seed)
    assert (found.temperature, found.top_k, found.presence_penalty) == (0, 0, 0)


def values(name: str) -> st.SearchStrategy[float | int | None]:
    bounds = sampling_range(name)
    if bounds.integer:
        return st.none() | st.integers(int(bounds.minimum), int(bounds.maximum))
    return st.none() | st.floats(bounds.minimum, bounds.maximum)


OVERRIDES = st.builds(SamplingOverrides, **{name: values(name) for name in FIELDS})


@given(process=OVERRIDES, request=OVERRIDES, greedy=st.booleans(), seed=st.integers(-(2**63), 2**63 - 1))
def test_every_field_by_itself(
    process: SamplingOverrides, request: SamplingOverrides, greedy: bool, seed: int
) -> None:
    found = resolve_sampling(NON_THINKING, process, request, greedy, seed, no_fresh_seed)
    for name in FIELDS:
        expected = getattr(NON_THINKING, name)
        for source in (process, request):
            if getattr(source, name) is not None:
                expected = getattr(source, name)
        assert getattr(found, name) == (0 if greedy and name == "temperature" else expected)
    assert found.seed == (seed if seed >= 0 else 2**64 + seed)


@pytest.mark.parametrize(
    ("signed", "unsigned"), [(0, 0), (7, 7), (-1, 2**64 - 1), (-3, 2**64 - 3), (-(2**63), 2**63)]
)
def test_signed_seeds_stand_for_their_two_s_complement(signed: int, unsigned: int) -> None:
    assert unsigned_seed(signed) == unsigned


@pytest.mark.clause_early("OPT-091")
def test_a_fresh_seed_only_without_one() -> None:
    fresh = iter([11, 12]).__next__
    seeds = [resolve_sampling(THINKING, NONE, NONE, False, seed, fresh).seed for seed in (None, 5, None)]
    assert seeds == [11, 5, 12]


def test_random_seeds_differ_and_can_be_sent_back() -> None:
    seeds = {random_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert all(sampling_range("seed").problem(seed) is None for seed in seeds)
