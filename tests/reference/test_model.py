"""The text model against transformers, against itself in pieces, and against itself in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ninfer.reference.model import ReferenceModel, text_positions
from tests.reference import oracle
from tests.support.nano_weights import Kind, artifact_config

LIMIT = 1e-4


def model(kind: Kind, tied: bool = False, dtype: torch.dtype = torch.float32) -> ReferenceModel:
    return ReferenceModel(artifact_config(oracle.members(kind, tied)), oracle.weights(kind, tied, dtype))


def logits(model: ReferenceModel, tokens: Tensor, positions: Tensor, pieces: list[int]) -> Tensor:
    """[T, V], the tokens fed in pieces of these sizes."""
    assert sum(pieces) == len(tokens)
    state, rows, start = model.new_state(), [], 0
    for size in pieces:
        piece = slice(start, start + size)
        rows.append(model.logits(model.forward(tokens[piece], positions[:, piece], state)))
        start += size
    assert state.length == len(tokens)
    return torch.cat(rows)


def report(name: str, found: Tensor, wanted: Tensor, limit: float = LIMIT) -> None:
    error = (found - wanted).abs().max().item()
    print(f"max_logit_error={error:.2e} limit={limit:.0e} deviation={wanted.std(-1).mean():.2f} case={name}")
    assert error <= limit


@pytest.mark.parametrize(("kind", "tied"), oracle.CASES, ids=oracle.IDS)
def test_one_pass_equals_transformers(kind: Kind, tied: bool) -> None:
    tokens, positions = oracle.random_tokens(300, 1), text_positions(0, 300)
    found = logits(model(kind, tied), tokens, positions, [300])
    report(f"{kind}-{tied}-one-pass", found, oracle.hf_logits(kind, tied, tokens, positions))


@pytest.mark.parametrize(("kind", "tied"), oracle.CASES, ids=oracle.IDS)
def test_step_by_step_equals_transformers(kind: Kind, tied: bool) -> None:
    tokens, positions = oracle.random_tokens(120, 2), text_positions(0, 120)
    steps = [1] * 120
    found = logits(model(kind, tied), tokens, positions, steps)
    report(f"{kind}-{tied}-steps", found, oracle.hf_logits(kind, tied, tokens, positions))
    prefilled = [70] + [1] * 50
    found = logits(model(kind, tied), tokens, positions, prefilled)
    report(
        f"{kind}-{tied}-prefill-then-steps", found, oracle.hf_steps(kind, tied, tokens, positions, prefilled)
    )


POSITIONS = {
    "image": oracle.media_positions([9, (5, 7), 20, (8, 3), 30]),
    "far": oracle.media_positions([90]) + 20000,
    "scattered": torch.randint(0, 3000, (3, 90), generator=torch.Generator().manual_seed(8)),
}


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_three_position_axes_equal_transformers(kind: Kind, name: str) -> None:
    positions = POSITIONS[name]
    tokens = oracle.random_tokens(positions.shape[1], 3)
    wanted = oracle.hf_logits(kind, False, tokens, positions)
    report(f"{kind}-{name}", logits(model(kind), tokens, positions, [len(tokens)]), wanted)
    steps = [40] + [1] * (len(tokens) - 40)
    report(f"{kind}-{name}-steps", logits(model(kind), tokens, positions, steps), wanted)
    if name != "far":  # attention sees only differences of positions; these differ
        plain = oracle.hf_logits(kind, False, tokens, text_positions(0, len(tokens)))
        assert (wanted - plain).abs().max() > 0.1


@pytest.mark.parametrize(("kind", "tied"), oracle.CASES, ids=oracle.IDS)
def test_greedy_ids_equal_transformers_over_64_tokens(kind: Kind, tied: bool) -> None:
    reference = model(kind, tied)
    for seed in range(2):
        prompt = oracle.random_tokens(5 + 60 * seed, 40 + seed)
        assert greedy(reference, prompt, 64) == oracle.greedy(
            oracle.hf_model(kind, tied), prompt.tolist(), 64
        )


def greedy(reference: ReferenceModel, prompt: Tensor, count: int) -> list[int]:
    state, ids = reference.new_state(), list[int]()
    hidden = reference.forward(prompt, text_positions(0, len(prompt)), state)
    while len(ids) < count:
        ids.append(int(reference.logits(hidden[-1:]).argmax()))
        hidden = reference.forward(torch.tensor(ids[-1:]), text_positions(state.length, 1), state)
    return ids


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_float64_switch_tightens_everything(kind: Kind) -> None:
    tokens, positions = oracle.random_tokens(200, 4), text_positions(0, 200)
    exact = model(kind, dtype=torch.float64)
    whole = logits(exact, tokens, positions, [200])
    assert whole.dtype == torch.float64
    report(f"{kind}-float64-steps", logits(exact, tokens, positions, [1] * 200), whole, 1e-11)
    report(f"{kind}-float32", logits(model(kind), tokens, positions, [200]).double(), whole)
    report(f"{kind}-transformers", oracle.hf_logits(kind, False, tokens, positions).double(), whole)


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_a_cloned_state_resumes_bit_for_bit(kind: Kind) -> None:
    reference, tokens = model(kind), oracle.random_tokens(90, 5)
    straight = logits(reference, tokens, text_positions(0, 90), [64, *[1] * 26])
    state = reference.new_state()
    reference.forward(tokens[:64], text_positions(0, 64), state)
    kept = state.clone()
    # Another continuation spoils the first state; the clone must not notice.
    reference.forward(oracle.random_tokens(40, 6), text_positions(64, 40), state)
    for _ in range(2):
        resumed = kept.clone()
        rows = [
            reference.logits(reference.forward(tokens[i : i + 1], text_positions(i, 1), resumed))
            for i in range(64, 90)
        ]
        assert torch.equal(torch.cat(rows), straight[64:])
    assert kept.length == 64


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_pieces_at_multiples_of_64_give_one_recurrent_state(kind: Kind) -> None:
    reference, tokens = model(kind, dtype=torch.float64), oracle.random_tokens(256, 7)
    whole = logits(reference, tokens, text_positions(0, 256), [256])
    report(f"{kind}-pieces", logits(reference, tokens, text_positions(0, 256), [64, 128, 64]), whole, 1e-11)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=5), st.integers(0, 3))
def test_any_cut_gives_one_answer(pieces: list[int], seed: int) -> None:
    reference = model("dense", dtype=torch.float64)
    tokens = oracle.random_tokens(sum(pieces), seed)
    positions = text_positions(0, len(tokens))
    whole = logits(reference, tokens, positions, [len(tokens)])
    assert (logits(reference, tokens, positions, pieces) - whole).abs().max() < 1e-11
