"""llama.cpp's timings: the contract's own numbers, and rates that are always finite."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.http.schemas import check_schema
from ninfer.engine.events import DraftUsage, Usage
from ninfer.server.answer.pieces import TimingSnapshot
from ninfer.server.chat.timings import timings_object, usage_timings


@pytest.mark.clause("TIMING-008", "TIMING-009")
def test_the_contracts_example() -> None:
    assert timings_object(TimingSnapshot(8192, 4096, 129, 0.083, 1.140)) == {
        "cache_n": 4096,
        "prompt_n": 4096,
        "prompt_ms": 83.0,
        "prompt_per_token_ms": 0.020263671875,
        "prompt_per_second": pytest.approx(49349.39759036145),
        "predicted_n": 129,
        "predicted_ms": pytest.approx(1140.0),
        "predicted_per_token_ms": pytest.approx(8.90625),
        "predicted_per_second": pytest.approx(112.28070175438596),
    }


SECONDS = st.floats(0, 1e6, allow_subnormal=False) | st.just(0.0)


@pytest.mark.clause_early("TIMING-010")
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), SECONDS, SECONDS)
def test_every_rate_is_finite(
    cached: int, rest: int, predicted: int, prompt_s: float, decode_s: float
) -> None:
    timings = timings_object(TimingSnapshot(cached + rest, cached, predicted, prompt_s, decode_s))
    check_schema("Timings", timings)
    assert all(math.isfinite(value) for value in timings.values())
    if predicted < 2 or decode_s == 0:
        assert timings["predicted_per_second"] == 0
    if rest == 0:
        assert timings["prompt_per_token_ms"] == timings["prompt_per_second"] == 0


@pytest.mark.parametrize(
    ("draft", "members"),
    [
        (None, {}),
        (DraftUsage("mtp", 3), {}),
        (DraftUsage("mtp", 3, 2, 6, 4), {"draft_n": 6, "draft_n_accepted": 4}),
    ],
)
def test_drafts_are_told_where_any_were_made(draft: DraftUsage | None, members: dict[str, Any]) -> None:
    timings = usage_timings(Usage(10, 4, 7, 3, 0.1, 0.2, 0.1, draft))
    check_schema("Timings", timings)
    assert {name: timings[name] for name in timings if name.startswith("draft")} == members
