"""Gate 1: any drafter, width, batch, sampler, stop and budget gives the tokens of no speculation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from conformance.engine.draws import LAYERS, RECIPES, SHAPES, Random
from conformance.engine.speculation.drafters import KnowingDrafter
from conformance.engine.speculation.draws import (
    CONTEXT,
    DrafterDraw,
    draw_drafter,
    draw_requests,
    with_stops_and_sources,
)
from conformance.engine.speculation.drive import Got, RoundTrace, program_of, serve
from ninfer.engine.events import Finished
from tests.support.nano import nano_artifact

CAMPAIGN_REQUESTS, GROUP_REQUESTS = 3000, 50
Artifacts = Callable[..., Path]


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    built: dict[str, Path] = {}

    def artifact(kind: str, recipe: str, layers: str, shape: str) -> Path:
        name = f"{kind}-{recipe}-{layers}-{shape}"
        if name not in built:
            types = [{"G": "linear_attention", "A": "full_attention"}[letter] for letter in layers]
            changes: dict[str, Any] = dict(SHAPES[shape][kind])  # type: ignore[index]
            changes |= {"layer_types": types, "num_hidden_layers": len(types)}
            directory = tmp_path_factory.mktemp(name)
            built[name] = nano_artifact(directory, kind, recipe=recipe, **changes)  # type: ignore[arg-type]
        return built[name]

    return artifact


def one_of(random: Random, values: Any) -> Any:
    return values[int(random.integers(len(values)))]


class Totals:
    """What a campaign went through."""

    def __init__(self) -> None:
        self.requests = self.drafted = self.accepted = self.copied = self.stopped = 0
        self.columns: set[int] = set()

    def add(self, got: dict[str, Got], traces: list[RoundTrace]) -> None:
        for one in got.values():
            assert isinstance(one.end, Finished)
            check_counts(one)
            self.requests += 1
            self.drafted += one.draft.drafted_tokens
            self.accepted += one.draft.accepted_tokens
            self.copied += one.draft.ngram_accepted_tokens
            self.stopped += one.end.reason == "stop"
        for trace in traces:
            self.columns |= set(trace.columns)

    def __str__(self) -> str:
        return (
            f"requests={self.requests} drafted={self.drafted} accepted={self.accepted} copied={self.copied} "
            f"stopped={self.stopped} columns={sorted(self.columns)}"
        )


def check_counts(got: Got) -> None:
    """A round commits its accepted drafts and one token more; the first token is the prompt's."""
    draft, end = got.draft, got.end
    assert isinstance(end, Finished)
    if not end.usage.completion_tokens:
        return
    rounds = draft.rounds + draft.fallback_steps
    assert end.usage.completion_tokens == 1 + rounds + draft.accepted_tokens
    assert sum(draft.accepted_per_position) == draft.accepted_tokens <= draft.drafted_tokens
    assert sum(draft.drafted_per_position) == draft.drafted_tokens
    assert draft.ngram_rounds <= draft.rounds
    assert draft.ngram_accepted_tokens <= draft.ngram_drafted_tokens <= draft.drafted_tokens


def run_group(
    path: Path, random: Random, requests: int, kv_format: str, totals: Totals, widest: bool = False
) -> DrafterDraw:
    """The same requests without and with drafts, in other company and on other memory.

    ``widest``: with copies as wide as there are, which only one lane may have.
    """
    lanes = 1 if widest else int(random.integers(1, 9))
    draw = draw_drafter(random, lanes)
    if widest:
        draw = replace(draw, settings=structs.replace(draw.settings, copy_tokens=63), sources=True)
    ceiling = CONTEXT // 64
    sizes = {
        "lanes": lanes, "max_context": CONTEXT, "kv_format": kv_format,
        "pages": lanes * ceiling if random.random() < 0.5 else ceiling + int(random.integers(ceiling)),
        "threads": 1 + int(random.random() < 0.1),
        "activations": one_of(random, ("float32", "float32", "bf16")),
    }  # fmt: skip
    with program_of(path, **sizes) as program:
        asked = draw_requests(random, requests)
        plain, _ = serve(program, asked, random=random)
        answers = {name: list(got.tokens) for name, got in plain.items()}
        asked = with_stops_and_sources(random, asked, plain, draw.sources)
        plain, _ = serve(program, asked, random=random)
        drafter = None if draw.wrong is None else KnowingDrafter(draw.wrong, random, answers)
        drafted, traces = serve(program, asked, draw.settings, drafter, random)
    for one in asked:
        found, wanted = drafted[one.request.id], plain[one.request.id]
        if one.cancel_after is None:
            assert found.outcome == wanted.outcome, f"{draw}, request {one.request.id}"
        else:  # the cancellation meets it elsewhere
            common = min(len(found.tokens), len(wanted.tokens))
            assert found.tokens[:common] == wanted.tokens[:common], f"{draw}, request {one.request.id}"
    totals.add(drafted, traces)
    return draw


@pytest.mark.clause("EXEC-015", "HTTP-029", "NGRAM-013")
@pytest.mark.parametrize("seed", range(8))
def test_drafts_change_no_token(artifacts: Artifacts, seed: int) -> None:
    random, totals = np.random.default_rng([9, seed]), Totals()
    kind, layers, shape = ("dense", "moe")[seed % 2], LAYERS[seed % 4], ("nano", "odd", "nano")[seed % 3]
    path = artifacts(kind, RECIPES[seed % 4], layers, shape)
    for _ in range(3):
        run_group(path, random, 10, ("float32", "float32", "bf16", "int8")[seed % 4], totals)
    print(totals)
    assert totals.drafted > 50


@pytest.mark.campaign
@pytest.mark.clause("EXEC-015", "HTTP-029", "NGRAM-013", "NGRAM-038")
def test_three_thousand_requests(artifacts: Artifacts, campaign_seed: int) -> None:
    random, totals = np.random.default_rng(campaign_seed), Totals()
    while totals.requests < CAMPAIGN_REQUESTS:
        path = artifacts(
            one_of(random, ("dense", "moe")),
            one_of(random, RECIPES),
            one_of(random, LAYERS),
            one_of(random, tuple(SHAPES)),
        )
        # One group in ten: a seed that draws no such engine says nothing of the widest blocks.
        widest = totals.requests % (10 * GROUP_REQUESTS) == 0
        run_group(path, random, GROUP_REQUESTS, "float32", totals, widest)
        print(totals, flush=True)
    assert totals.accepted > 10_000
    assert totals.copied > 3000
    assert totals.stopped > 300
    assert {*range(1, 17), 64} <= totals.columns
    assert any(16 < columns <= 32 for columns in totals.columns)
