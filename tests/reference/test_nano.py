"""Nano weights are strong enough to prove something: no layer is idle and logits spread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
import torch
from torch import Tensor

from ninfer.reference.model import ReferenceModel, text_positions
from ninfer.reference.mtp import MtpHead
from ninfer.reference.state import GdnState, KvCache, State
from tests.reference import oracle
from tests.support.nano_weights import Kind, artifact_config, checkpoint_tensors

PROMPTS = [oracle.random_tokens(3 + index, seed=100 + index) for index in range(20)]
ANSWER = 32
# The parameters through which a layer's mixer and feed-forward reach the residual stream.
OUTPUTS = ("gdn/output", "attention/output", "mlp/down", "moe/shared/down", "/down")


def build(kind: Kind, tied: bool, weights: Mapping[str, Tensor]) -> ReferenceModel:
    return ReferenceModel(artifact_config(oracle.members(kind, tied)), weights)


def without(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The weights with everything that the layer adds to the residual stream zeroed."""
    zeroed = [name for name in weights if name.startswith(prefix) and name.endswith(OUTPUTS)]
    assert zeroed
    return {name: torch.zeros_like(w) if name in zeroed else w for name, w in weights.items()}


def answer(
    model: ReferenceModel, prompt: Tensor, fault: Callable[[State], int] = lambda state: 0
) -> Iterator[int]:
    """Greedy ids, lazily; ``fault`` may spoil the state after the prompt and shifts later positions."""
    state = model.new_state()
    hidden = model.forward(prompt, text_positions(0, len(prompt)), state)
    shift = fault(state)
    for _ in range(ANSWER):
        token = int(model.logits(hidden[-1:]).argmax())
        yield token
        hidden = model.forward(torch.tensor([token]), text_positions(state.length + shift, 1), state)


def stale_convolution_column(state: State) -> int:
    for layer in state.layers:
        if isinstance(layer, GdnState):
            layer.window[2] = layer.window[1]
    return 0


def halved_recurrent_state(state: State) -> int:
    for layer in state.layers:
        if isinstance(layer, GdnState):
            layer.recurrent = 0.5 * layer.recurrent
    return 0


def two_pages_swapped(state: State) -> int:
    for layer in state.layers:
        if isinstance(layer, KvCache):
            layer.keys[:32] = torch.cat([layer.keys[16:32], layer.keys[:16]])
    return 0


def rotation_off_by_one(state: State) -> int:
    return 1


FAULTS = [stale_convolution_column, halved_recurrent_state, two_pages_swapped, rotation_off_by_one]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_a_slightly_spoilt_state_changes_every_second_answer(
    kind: Kind, fault: Callable[[State], int]
) -> None:
    model = build(kind, False, oracle.weights(kind))
    changed = 0
    for seed in range(20):
        prompt = oracle.random_tokens(40 + seed, seed)
        pairs = zip(answer(model, prompt), answer(model, prompt, fault), strict=True)
        changed += any(right != wrong for right, wrong in pairs)
    print(f"changed_answers={changed / 20:.0%} case={kind}-{fault.__name__}")
    assert changed >= 10


@pytest.mark.parametrize(("kind", "tied"), oracle.CASES[:3], ids=oracle.IDS[:3])
def test_zeroing_any_layer_changes_nine_answers_in_ten(kind: Kind, tied: bool) -> None:
    weights = oracle.weights(kind, tied)
    whole = build(kind, tied, weights)
    answers = [list(answer(whole, prompt)) for prompt in PROMPTS]
    shares = []
    for layer in range(whole.config.layers):
        poorer = build(kind, tied, without(weights, f"text/layers/{layer}/"))
        changed = sum(
            any(a != b for a, b in zip(answer(poorer, prompt), full, strict=True))
            for prompt, full in zip(PROMPTS, answers, strict=True)
        )
        shares.append(changed / len(PROMPTS))
    name = f"{kind}{'-tied' if tied else ''}"
    distinct = sum(len(set(ids)) for ids in answers) / len(answers)
    print(f"changed_answers={[f'{share:.0%}' for share in shares]} distinct_ids={distinct:.1f} case={name}")
    assert min(shares) >= 0.9


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_zeroing_the_mtp_layer_changes_nine_drafts_in_ten(kind: Kind) -> None:
    weights = oracle.weights(kind)
    text = build(kind, False, weights)
    heads = [MtpHead(text.config, w, text) for w in (weights, without(weights, "mtp/layers/0/"))]
    changed = 0
    for prompt in PROMPTS:
        positions = text_positions(0, len(prompt))
        hidden = text.forward(prompt, positions, text.new_state())
        following = torch.cat([prompt[1:], text.logits(hidden[-1:]).argmax(-1)])
        drafts = []
        for head in heads:
            cache = head.new_cache()
            rows = head.forward(following, hidden, positions, cache)
            drafts.append(head.draft(rows[-1], positions[:, -1], 5, cache))
        changed += drafts[0] != drafts[1]
    print(f"changed_drafts={changed / len(PROMPTS):.0%} case={kind}-mtp")
    assert changed >= 0.9 * len(PROMPTS)


@pytest.mark.parametrize(("kind", "tied"), oracle.CASES, ids=oracle.IDS)
def test_logits_deviate_by_two_to_four(kind: Kind, tied: bool) -> None:
    model = build(kind, tied, oracle.weights(kind, tied))
    tokens = oracle.random_tokens(200, 5)
    logits = model.logits(model.forward(tokens, text_positions(0, 200), model.new_state()))
    deviation = logits.std(-1)
    print(f"logit_deviation={deviation.min():.2f}..{deviation.max():.2f} case={kind}-{tied}")
    assert deviation.quantile(0.01) >= 2
    assert deviation.quantile(0.99) <= 4


def test_norms_are_random_and_values_survive_bf16() -> None:
    for name, tensor in checkpoint_tensors(oracle.members("moe")).items():
        if "norm" in name:
            assert tensor.std() > 0.1
        assert torch.equal(tensor, tensor.to(torch.bfloat16).to(torch.float32))


def test_weights_depend_on_the_seed_and_nothing_else() -> None:
    members = oracle.members("dense")
    first, again, other = (checkpoint_tensors(members, seed=seed) for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    shared = checkpoint_tensors(oracle.members("moe"))
    assert torch.equal(shared["lm_head.weight"], first["lm_head.weight"])
