"""transformers as the independent oracle: the same nano tensors in its own model classes.

Owns the way into transformers (which names, which calls); compares nothing itself.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from tests.support.nano_weights import Kind, checkpoint_tensors, logical_weights, text_config_members

CASES: list[tuple[Kind, bool]] = [("dense", False), ("moe", False), ("dense", True), ("moe", True)]
IDS = [f"{kind}{'-tied' if tied else ''}" for kind, tied in CASES]


@functools.cache
def members(kind: Kind, tied: bool = False) -> dict[str, Any]:
    return text_config_members(kind, tied)


@functools.cache
def tensors(kind: Kind, tied: bool = False) -> dict[str, Tensor]:
    return checkpoint_tensors(members(kind, tied))


def weights(kind: Kind, tied: bool = False, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return logical_weights(members(kind, tied), tensors(kind, tied), dtype)


def hf_config(kind: Kind, tied: bool = False) -> Any:
    return AutoConfig.for_model(**members(kind, tied))


@functools.cache
def hf_model(kind: Kind, tied: bool = False) -> Any:
    """The text model in float32 with every parameter taken from the nano tensors."""
    model = AutoModelForCausalLM.from_config(hf_config(kind, tied), attn_implementation="eager").eval()
    state = {name: t for name, t in tensors(kind, tied).items() if not name.startswith("mtp.")}
    if tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model


def hf_logits(kind: Kind, tied: bool, tokens: Tensor, positions: Tensor) -> Tensor:
    """Logits [T, V] of one pass. Shapes: tokens [T], positions [3, T]."""
    with torch.no_grad():
        return hf_model(kind, tied)(tokens[None], position_ids=positions[:, None], use_cache=False).logits[0]


def hf_hidden(kind: Kind, tokens: Tensor, positions: Tensor) -> Tensor:
    """The final-normed hidden rows [T, H] of one pass."""
    with torch.no_grad():
        model = hf_model(kind, False).model
        return model(tokens[None], position_ids=positions[:, None], use_cache=False).last_hidden_state[0]


def hf_steps(kind: Kind, tied: bool, tokens: Tensor, positions: Tensor, pieces: Sequence[int]) -> Tensor:
    """Logits [T, V] through transformers' own cache, fed in pieces of these sizes."""
    cache, rows, start = DynamicCache(config=hf_config(kind, tied)), [], 0
    with torch.no_grad():
        for size in pieces:
            piece = slice(start, start + size)
            output = hf_model(kind, tied)(
                tokens[None, piece], position_ids=positions[:, None, piece], cache=cache
            )
            rows.append(output.logits[0])
            start += size
    return torch.cat(rows)


def greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """``count`` greedy ids through the ``generate`` of a transformers model."""
    tokens = torch.tensor([list(prompt)])
    with torch.no_grad():
        output = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),  # else ids equal to the padding id are left out
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return output[0, len(prompt) :].tolist()


def random_tokens(count: int, seed: int, vocab: int = 512) -> Tensor:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed))


def media_positions(runs: Sequence[int | tuple[int, int]]) -> Tensor:
    """Positions [3, T] of text runs (a count) and image grids (rows, columns), as media makes them."""
    columns: list[tuple[int, int, int]] = []
    current = 0
    for run in runs:
        if isinstance(run, int):
            columns += [(current + i,) * 3 for i in range(run)]
            current += run
        else:
            rows, width = run
            columns += [(current, current + r, current + c) for r in range(rows) for c in range(width)]
            current += max(rows, width)
    return torch.tensor(columns).T
