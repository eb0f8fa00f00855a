"""``--cpu-activations bf16``, judged by the rule of engines that compute in bf16.

Law 8 holds bit for bit; logits err at most 1.5 times as much as plain PyTorch in bf16; and of the tokens that
errors turn there may be 1.25 times as many as plain PyTorch's turn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance.engine import oracle
from conformance.engine.compare import Judged, assert_same_bits, draw, errors_of
from conformance.engine.draws import EngineDraw, ModelDraw, RequestDraw, draw_engine, draw_requests, shuffled
from conformance.engine.drive import Answer, disturb, serve
from conformance.engine.faults import another_layers_decay, rope_off_by_one, stale_conv_column
from conformance.engine.models import Model, Shelf
from conformance.engine.oracle import Oracle
from conformance.engine.planting import Plant
from conformance.engine.recorder import RecordingProgram
from conformance.engine.report import RATIO
from ninfer.fast.program.program import Program
from ninfer.reference import layers
from ninfer.reference.ops import lm_head, moe_experts
from tests.support.nano import VOCABULARY

MODELS = (
    ModelDraw(),
    ModelDraw(recipe="groupwise-int", layers="GGAA", shape="odd"),
    ModelDraw(recipe="q8", layers="AGGG", tied=True),
    ModelDraw(kind="moe", layers="GAGA"),
)
TOKENS = 1.25


def sound(program: Program) -> None:
    """No fault."""


def answers(
    model: Model, requests: list[RequestDraw], engine: EngineDraw, plant: Plant = sound
) -> dict[str, Answer]:
    with closing(model.program(engine)) as program:
        disturb(program, np.random.default_rng(len(requests)))
        plant(program)
        return serve(RecordingProgram(program), requests)


@contextmanager
def bf16_products() -> Iterator[None]:
    """Let the reference multiply matrices as PyTorch does in bf16: inputs and results are rounded."""

    def rounded(x: Tensor, weight: Tensor) -> Tensor:
        return (x.to(torch.bfloat16) @ weight.to(torch.bfloat16).T).to(x.dtype)

    with pytest.MonkeyPatch.context() as patch:
        for module in (oracle, layers, lm_head, moe_experts):
            patch.setattr(module, "linear", rounded)
        yield


def judged(model: Model, found: dict[str, Answer]) -> list[Judged]:
    """The answers beside PyTorch with products in bf16 and in float64."""
    oracles = [Oracle(model, dtype, "bf16") for dtype in (torch.float32, torch.float64)]
    result = []
    for answer in found.values():
        prompt = [int(token) for token in answer.request.prompt]
        sequence, first = prompt + answer.tokens[:-1], len(prompt) - 1
        if answer.tokens:
            logits = []
            for side, products in zip(oracles, (bf16_products(), nullcontext()), strict=True):
                with products:
                    logits.append(side.forced(sequence, first).logits)
            result.append(Judged(answer, answer.logits[: len(answer.tokens)], *logits, rerouted=False))
    return result


def turned(one: Judged) -> tuple[int, int, int]:
    """Tokens that are not what their own logits draw; that differ from the exact ones'; plain PyTorch's."""
    counts, own, mine, its = np.zeros(VOCABULARY, np.int32), 0, 0, 0
    for index, token in enumerate(one.answer.tokens):
        wanted = draw(one, one.exact[index], index, counts)
        own += draw(one, one.fast[index], index, counts) != token
        mine += token != wanted
        its += draw(one, one.plain[index], index, counts) != wanted
        counts[token] += 1
    return own, mine, its


def verdict(all_judged: list[Judged]) -> list[str]:
    """What the rule does not allow, and a line of figures."""
    fast = np.concatenate([errors_of(one.fast, one.exact) for one in all_judged])
    plain = np.concatenate([errors_of(one.plain, one.exact) for one in all_judged])
    own, mine, its = np.sum([turned(one) for one in all_judged], axis=0)
    print(
        f"activations=bf16 positions={len(fast)} median_error={np.median(fast):.1e} "
        f"plain_median={np.median(plain):.1e} tokens={mine}/{its} own={own}"
    )
    found = [f"{own} tokens are not what their own logits draw"] if own else []
    for percentile in (50, 99):
        ours, theirs = np.percentile(fast, percentile), np.percentile(plain, percentile)
        if ours > RATIO * theirs:
            found.append(f"logits err by {ours:.2e} at percentile {percentile}, plain by {theirs:.2e}")
    if mine > TOKENS * its:
        found.append(f"{mine} tokens turned, of plain PyTorch's {its}")
    return found


@pytest.mark.parametrize("draw_of_model", MODELS, ids=lambda draw: draw.name)
def test_bf16_activations_err_as_bf16_may(shelf: Shelf, draw_of_model: ModelDraw) -> None:
    random = np.random.default_rng([20261, MODELS.index(draw_of_model)])
    model, requests = shelf.model(draw_of_model), draw_requests(random, 8, 64)
    engines = [
        dataclasses.replace(draw_engine(random, "bf16", 64), activations="bf16", lanes=lanes)
        for lanes in (8, 3)
    ]
    first = answers(model, requests, engines[0])
    other = answers(model, shuffled(random, requests), engines[1])
    for name, answer in first.items():
        assert_same_bits(answer, other[name], "another batch")
    alone = answers(model, requests[:1], engines[1])
    assert_same_bits(alone[requests[0].id], first[requests[0].id], "alone")
    assert verdict(judged(model, first)) == []


@pytest.mark.parametrize(
    "fault", [rope_off_by_one, stale_conv_column, another_layers_decay], ids=lambda fault: fault.__name__
)
def test_the_rule_sees_a_fault(shelf: Shelf, fault: Plant) -> None:
    random = np.random.default_rng(3)
    model, requests = shelf.model(MODELS[0]), draw_requests(random, 4, 64)
    engine = dataclasses.replace(draw_engine(random, "bf16", 64), activations="bf16")
    assert verdict(judged(model, answers(model, requests, engine, fault))) != []
