"""The campaign: drawn models and requests, every position compared with the oracle.

``make test`` runs a few fixed groups; ``make test-all`` draws at least 200,000 positions from a fresh seed.
"""

from __future__ import annotations

import numpy as np
import pytest

from conformance.engine.campaign import Group
from conformance.engine.draws import (
    CHUNKS,
    KV_FORMATS,
    ModelDraw,
    draw_engine,
    draw_model,
    draw_requests,
)
from conformance.engine.models import Shelf
from conformance.engine.report import Report, table

GROUPS = (
    Group(ModelDraw(), "float32", 64, 8),
    Group(ModelDraw(kind="moe", recipe="groupwise-int", layers="GAGA"), "float32", 128, 8),
    Group(ModelDraw(recipe="groupwise-int", layers="GGAA", shape="odd"), "float32", 256, 8),
    Group(ModelDraw(recipe="q4", layers="AGGG", tied=True), "bf16", 64, 8),
    Group(ModelDraw(kind="moe", recipe="q8", shape="odd"), "bf16", 192, 8),
    Group(ModelDraw(kind="moe", layers="AGGG"), "int8", 64, 8),
    Group(ModelDraw(recipe="q8", layers="GAGA", shape="odd"), "int8", 128, 8),
    Group(ModelDraw(kind="moe", layers="GGAA"), "k8v4", 128, 6),
    Group(ModelDraw(layers="AGGG", shape="odd"), "nvfp4", 64, 6),
)
CAMPAIGN_POSITIONS, GROUP_REQUESTS = 200_000, 40
# The next KV format of a campaign: half of it with float32 caches, whose cap needs the most positions.
KV_ROTATION = (
    "float32", "bf16", "float32", "int8", "float32", "fp8", "float32", "k8v4", "float32", "nvfp4"
)  # fmt: skip


def run(group: Group, shelf: Shelf, random: np.random.Generator) -> Report:
    try:
        return group.run(shelf, random)
    except Exception as error:
        raise AssertionError(f"{group}: {error}") from error


@pytest.mark.clause_early("EXEC-011", "SETTLE-010", "HTTP-024")
@pytest.mark.clause("HTTP-028")
@pytest.mark.parametrize(
    ("index", "group"),
    list(enumerate(GROUPS)),
    ids=[f"{group.model.name}-{group.kv_format}" for group in GROUPS],
)
def test_the_fast_engine_equals_the_oracle(shelf: Shelf, index: int, group: Group) -> None:
    report = run(group, shelf, np.random.default_rng([20260, index]))
    print(table([report]))
    assert report.verdict() == []
    assert report.positions > 400
    assert report.cut_positions > 20
    assert report.repeated_positions > report.positions


def test_draws_have_the_shares_that_a_campaign_must_have() -> None:
    random = np.random.default_rng(1)
    requests = [(request, chunk) for chunk in CHUNKS for request in draw_requests(random, 400, chunk)]
    tokens = sum(request.max_tokens for request, _ in requests)
    penalised = sum(request.max_tokens for request, _ in requests if request.is_sampled_with_penalties)
    assert penalised / tokens >= 0.3
    assert sum(request.crosses(chunk) for request, chunk in requests) / len(requests) >= 0.25
    assert tokens / len(requests) >= 64
    assert 0.05 < sum(request.cancel_after is not None for request, _ in requests) / len(requests) < 0.2
    models = [draw_model(random) for _ in range(200)]
    assert {(model.kind, model.recipe) for model in models} >= {
        (kind, recipe) for kind in ("dense", "moe") for recipe in ("bf16", "q8", "q4", "groupwise-int")
    }
    engines = [draw_engine(random, "int8", 64) for _ in range(100)]
    assert {engine.lanes for engine in engines} == set(range(1, 9))
    assert {engine.threads for engine in engines} == {1, 2}


@pytest.mark.campaign
@pytest.mark.clause_early("EXEC-011", "SETTLE-010", "HTTP-024")
def test_two_hundred_thousand_positions(shelf: Shelf, campaign_seed: int) -> None:
    reports = {kv_format: Report(kv_format) for kv_format in KV_FORMATS}
    try:
        run_campaign(shelf, np.random.default_rng(campaign_seed), reports)
    finally:
        print(table(reports.values()))
        for report in reports.values():
            print(*report.verdict(), sep="\n")
    whole = list(reports.values())
    assert [problem for report in whole for problem in report.verdict()] == []
    positions = sum(report.positions for report in whole)
    assert sum(report.sampled_with_penalties for report in whole) >= 0.3 * positions
    assert sum(report.crossing for report in whole) >= 0.25 * sum(report.prompts for report in whole)
    assert all(report.whole_tokens >= 64 * report.whole_answers for report in whole)
    assert set(range(1, 9)) <= set.union(*(report.widths for report in whole))


def run_campaign(shelf: Shelf, random: np.random.Generator, reports: dict[str, Report]) -> None:
    """Groups until there are enough positions; each adds to the report of its KV format."""
    groups = 0
    while (positions := sum(report.positions for report in reports.values())) < CAMPAIGN_POSITIONS:
        kv_format = KV_ROTATION[groups % len(KV_ROTATION)]
        group = Group(draw_model(random), kv_format, int(random.choice(CHUNKS)), GROUP_REQUESTS)
        reports[kv_format].merge(run(group, shelf, random))
        groups += 1
        if groups % 5 == 0:
            print(f"groups={groups} positions={positions}", flush=True)
