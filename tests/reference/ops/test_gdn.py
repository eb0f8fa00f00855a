"""The gated delta rule: gates, definition and chunks, against transformers and each other."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from ninfer.reference.ops.gdn_chunked import gdn_chunked
from ninfer.reference.ops.gdn_gates import gdn_gates
from ninfer.reference.ops.gdn_recurrent import gdn_recurrent
from ninfer.reference.ops.l2_norm import l2_norm
from tests.reference.ops.samples import close, normal, uniform

HEADS, KEY, VALUE = 3, 16, 24


def inputs(
    rows: int, seed: int = 1, dtype: torch.dtype = torch.float32, strong: bool = False
) -> dict[str, Tensor]:
    """Normed queries and keys, values, decays (``strong``: down to e^-20 a token) and a state."""
    return {
        "query": l2_norm(normal(rows, HEADS, KEY, seed=seed, dtype=dtype)) / KEY**0.5,
        "key": l2_norm(normal(rows, HEADS, KEY, seed=seed + 1, dtype=dtype)),
        "value": normal(rows, HEADS, VALUE, seed=seed + 2, dtype=dtype),
        "decay": -uniform(rows, HEADS, seed=seed + 3, dtype=dtype) * (20 if strong else 0.2),
        "beta": uniform(rows, HEADS, seed=seed + 4, dtype=dtype),
        "state": normal(HEADS, KEY, VALUE, seed=seed + 5, dtype=dtype),
    }


def test_gates_by_hand() -> None:
    g, beta = gdn_gates(
        torch.tensor([[0.5]]), torch.tensor([[1.0]]), torch.tensor([math.log(2)]), torch.tensor([0.25])
    )
    close(g, torch.tensor([[-2 * math.log(1 + math.exp(0.75))]]))
    close(beta, torch.tensor([[1 / (1 + math.exp(-1))]]))


def test_one_token_by_hand() -> None:
    # One head, dk = 2, dv = 1: S = [3, 5] decays by half, the key reads its first entry.
    output, state = gdn_recurrent(
        query=torch.tensor([[[0.0, 2.0]]]),
        key=torch.tensor([[[1.0, 0.0]]]),
        value=torch.tensor([[[4.0]]]),
        decay=torch.tensor([[math.log(0.5)]]),
        beta=torch.tensor([[0.5]]),
        state=torch.tensor([[[3.0], [5.0]]]),
    )
    # The error is 4 - 1.5 against the decayed state; half of it is written.
    close(state, torch.tensor([[[2.75], [2.5]]]))
    close(output, torch.tensor([[[5.0]]]))


@pytest.mark.parametrize("rows", [1, 7, 64, 150])
def test_both_forms_equal_transformers(rows: int) -> None:
    given = inputs(rows)
    batched = {name: given[name][None] for name in ("key", "value", "beta")}
    arguments = batched | {
        "query": given["query"][None] * KEY**0.5,  # transformers scales the queries itself
        "g": given["decay"][None],
        "initial_state": given["state"][None],
        "output_final_state": True,
    }
    for theirs in (torch_recurrent_gated_delta_rule, torch_chunk_gated_delta_rule):
        wanted, last = theirs(**arguments)
        for output, state in (gdn_recurrent(**given), gdn_chunked(**given, position=0)):
            close(output, wanted[0], 5e-6)
            close(state, last[0], 5e-6)


@pytest.mark.parametrize("strong", [False, True])
@given(rows=st.integers(1, 200), position=st.integers(0, 300), seed=st.integers(0, 50))
def test_chunks_equal_the_definition(rows: int, position: int, seed: int, strong: bool) -> None:
    given = inputs(rows, seed, torch.float64, strong)
    wanted, last = gdn_recurrent(**given)
    output, state = gdn_chunked(**given, position=position)
    close(output, wanted, 1e-13)
    close(state, last, 1e-13)


def test_chunks_in_float32_are_as_near_to_the_truth_as_the_definition() -> None:
    exact, _ = gdn_recurrent(**inputs(500, dtype=torch.float64))
    errors = []
    for output, _ in (gdn_recurrent(**inputs(500)), gdn_chunked(**inputs(500), position=0)):
        errors.append((output.double() - exact).abs().quantile(0.99).item())
    print(f"gdn float32 p99 error: recurrent={errors[0]:.2e} chunked={errors[1]:.2e}")
    assert max(errors) < 1e-6


def test_pieces_at_multiples_of_64_are_bit_equal() -> None:
    given = inputs(192)
    whole, last = gdn_chunked(**given, position=64)
    rows, state = [], given.pop("state")
    for start, end in ((0, 64), (64, 192)):
        piece = {name: tensor[start:end] for name, tensor in given.items()}
        output, state = gdn_chunked(**piece, state=state, position=64 + start)
        rows.append(output)
    assert torch.equal(torch.cat(rows), whole)
    assert torch.equal(state, last)


def test_a_row_that_writes_nothing_changes_nothing() -> None:
    given = inputs(10)
    given["beta"][:], given["decay"][:] = 0, 0
    close(gdn_recurrent(**given)[1], given["state"])
    close(gdn_chunked(**given, position=0)[1], given["state"])
