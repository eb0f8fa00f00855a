"""The processed distribution: golden cases, an exact second reading, and transformers' own processors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ninfer import spec
from ninfer.errors import EngineError, RequestError
from ninfer.sampling.distribution import Distribution, processed_distribution
from ninfer.sampling.draw import pick
from ninfer.sampling.parameters import SamplingParameters
from tests.sampling import exact

VECTORS = spec.document("vectors/sampling")


def parameters(**changes: Any) -> SamplingParameters:
    values = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    values |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": 0}
    return SamplingParameters(**(values | changes))


def processed(
    logits: Sequence[float],
    sampling: SamplingParameters,
    counts: Mapping[int, int] | None = None,
    mask: Sequence[bool] | None = None,
    vocabulary: int | None = None,
) -> Distribution:
    array = np.zeros(len(logits), dtype=np.int32)
    for token, count in (counts or {}).items():
        array[token] = count
    return processed_distribution(
        np.array(logits, dtype=np.float32),
        sampling,
        array,
        None if mask is None else np.array(mask),
        vocabulary,
    )


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_golden(vector: dict) -> None:
    given, expected = vector["input"], vector["expected"]
    found = processed(
        given["logits"],
        parameters(**given["parameters"]),
        {int(token): count for token, count in given.get("counts", {}).items()},
        given.get("mask"),
        given.get("vocabulary"),
    )
    assert list(found.ids) == expected["ids"]
    assert found.probabilities == pytest.approx(expected["probabilities"], rel=1e-14)
    for draw in expected.get("draws", ()):
        assert pick(found, draw["u"]) == draw["token"]


# Few distinct logits, so that ties are common; a free float besides, so that they are not the rule.
LOGITS = st.lists(
    st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0, 1.5]) | st.floats(-30, 30, width=32), min_size=1, max_size=48
)
PROBABILITIES = st.sampled_from([0.0, 0.05, 0.5, 0.8, 0.95, 1.0]) | st.floats(0, 1)


@st.composite
def draws(draw: st.DrawFn) -> dict[str, Any]:
    logits = draw(LOGITS)
    size = len(logits)
    return {
        "logits": logits,
        "temperature": draw(st.sampled_from([0.1, 0.7, 1.0, 2.0]) | st.floats(0.01, 2)),
        "top_p": draw(PROBABILITIES),
        "top_k": draw(st.integers(0, 20)),
        "min_p": draw(PROBABILITIES),
        "presence_penalty": draw(st.sampled_from([0.0, 1.5]) | st.floats(-2, 2)),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.3]) | st.floats(-2, 2)),
        "counts": draw(st.dictionaries(st.integers(0, size - 1), st.integers(1, 500), max_size=6)),
        "mask": draw(st.none() | st.lists(st.booleans(), min_size=size, max_size=size)),
        "vocabulary": draw(st.none() | st.integers(1, size)),
    }


def allowed(case: Mapping[str, Any]) -> list[bool]:
    size = len(case["logits"])
    mask = case["mask"] or [True] * size
    return [mask[i] and i < (case["vocabulary"] or size) for i in range(size)]


@given(case=draws(), u=st.floats(0, 1, exclude_max=True))
def test_equals_the_exact_reading(case: dict[str, Any], u: float) -> None:
    assume(any(allowed(case)))
    names = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty")
    values = {name: case[name] for name in names}
    found = processed(case["logits"], parameters(**values), case["counts"], case["mask"], case["vocabulary"])
    wanted = exact.distribution(case["logits"], **values, counts=case["counts"], allowed=allowed(case))
    # Where an edge (top-p, min-p) is nearer than float64 can tell, the last candidates may differ.
    if found.ids != tuple(token for token, _ in wanted):
        assume(not edge_is_near(case, values))
    assert found.ids == tuple(token for token, _ in wanted)
    assert found.probabilities == pytest.approx([float(p) for _, p in wanted], rel=1e-11)
    token, margin = exact.walk(wanted, u)
    assume(margin > Decimal("1e-12"))
    assert pick(found, u) == token


def edge_is_near(case: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether moving top-p or min-p by 1e-12 changes the exact candidates."""
    found = set()
    for shift in (-1e-12, 0.0, 1e-12):
        moved = dict(values) | {name: min(1.0, max(0.0, values[name] + shift)) for name in ("top_p", "min_p")}
        candidates = exact.distribution(case["logits"], **moved, counts=case["counts"], allowed=allowed(case))
        found.add(tuple(token for token, _ in candidates))
    return len(found) > 1


@given(case=draws())
def test_temperature_zero_is_the_exact_argmax(case: dict[str, Any]) -> None:
    assume(any(allowed(case)))
    penalties = {name: case[name] for name in ("presence_penalty", "frequency_penalty")}
    found = processed(
        case["logits"],
        parameters(temperature=0.0, **penalties),
        case["counts"],
        case["mask"],
        case["vocabulary"],
    )
    scores = exact.penalised(case["logits"], *penalties.values(), case["counts"], allowed(case))
    assert found == Distribution((min(scores, key=lambda token: (-scores[token], token)),), (1.0,))


@given(case=draws())
def test_is_a_distribution(case: dict[str, Any]) -> None:
    assume(any(allowed(case)))
    found = processed(
        case["logits"],
        parameters(**{name: case[name] for name in ("temperature", "top_p", "top_k", "min_p")}),
        mask=case["mask"],
        vocabulary=case["vocabulary"],
    )
    assert 1 <= len(found.ids) <= (case["top_k"] or 20)
    assert len(set(found.ids)) == len(found.ids)
    assert all(allowed(case)[token] for token in found.ids)
    assert sum(found.probabilities) == pytest.approx(1, abs=1e-15 * 20)
    assert list(found.probabilities) == sorted(found.probabilities, reverse=True)
    assert found.probabilities[-1] > 0


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 20, 0.95, 0.0),  # the thinking presets
        (0.7, 20, 0.8, 0.0),  # the others
        (0.6, 5, 1.0, 0.0),
        (1.3, 20, 1.0, 0.1),
        (2.0, 12, 0.9, 0.05),
        (0.3, 1, 0.5, 0.5),
    ],
)
def test_equals_transformers_processors(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    import torch
    from transformers.generation import logits_process as hf

    chain = [
        hf.TemperatureLogitsWarper(temperature),
        hf.TopKLogitsWarper(top_k),
        hf.TopPLogitsWarper(top_p),
        hf.MinPLogitsWarper(min_p),
    ]
    generator = np.random.default_rng(17)
    for _ in range(50):
        logits = generator.normal(0, 3, 2000).astype(np.float32)
        scores = torch.from_numpy(logits).to(torch.float64)[None]
        for processor in chain:
            scores = processor(None, scores)
        wanted = scores.softmax(-1)[0]
        found = processed(
            logits.tolist(), parameters(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        )
        assert set(found.ids) == set(torch.nonzero(wanted)[:, 0].tolist())
        assert found.probabilities == pytest.approx(wanted[list(found.ids)].tolist(), rel=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_fail_the_request(bad: float) -> None:
    with pytest.raises(EngineError) as failure:
        processed([0.0, bad, 1.0], parameters())
    assert failure.value.code == "internal_error"


def test_masked_nonsense_is_harmless() -> None:
    assert processed([0.0, np.nan], parameters(), vocabulary=1).ids == (0,)
    assert processed([np.inf, 0.0], parameters(), mask=[False, True]).ids == (1,)


def test_nothing_allowed_is_a_dead_end() -> None:
    with pytest.raises(RequestError) as failure:
        processed([0.0, 1.0], parameters(), mask=[False, False])
    assert failure.value.code == "constraint_dead_end"


def test_inputs_are_left_alone() -> None:
    logits, counts = np.array([1.0, 2.0], np.float32), np.array([1, 0], np.int32)
    processed_distribution(logits, parameters(presence_penalty=1.0), counts, np.array([True, False]), 1)
    assert logits.tolist() == [1, 2]
    assert counts.tolist() == [1, 0]
