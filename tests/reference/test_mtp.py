"""The MTP head against transformers' decoder layer, its alignment, and its drafts without a cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.qwen3_5 import modeling_qwen3_5 as hf_dense
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as hf_moe

from ninfer.reference.model import ReferenceModel, text_positions
from ninfer.reference.mtp import MtpHead
from tests.reference import oracle
from tests.support.nano_weights import Kind, artifact_config

KINDS: list[Kind] = ["dense", "moe"]


def models(kind: Kind, dtype: torch.dtype = torch.float32) -> tuple[ReferenceModel, MtpHead]:
    config, weights = artifact_config(oracle.members(kind)), oracle.weights(kind, dtype=dtype)
    text = ReferenceModel(config, weights)
    return text, MtpHead(config, weights, text)


class HfMtp(nn.Module):
    """The head from transformers' parts: a full-attention decoder layer, four norms, one projection."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        config = oracle.hf_config(kind)
        config._attn_implementation = "eager"
        room: Any = hf_dense if kind == "dense" else hf_moe
        family = "Qwen3_5" if kind == "dense" else "Qwen3_5Moe"
        norm = getattr(room, f"{family}RMSNorm")
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (
            norm(64, eps=1e-6) for _ in range(3)
        )
        self.fc = nn.Linear(128, 64, bias=False)
        self.layers = nn.ModuleList([getattr(room, f"{family}DecoderLayer")(config, 3)])
        self.load_state_dict(
            {
                name.removeprefix("mtp."): tensor
                for name, tensor in oracle.tensors(kind).items()
                if name.startswith("mtp.")
            }
        )
        self._text = [oracle.hf_model(kind)]  # in a list: not a part of this module

    @torch.no_grad()
    def forward(self, next_tokens: Tensor, hidden: Tensor, positions: Tensor) -> Tensor:
        text = self._text[0].model
        embedded = self.pre_fc_norm_embedding(text.embed_tokens(next_tokens))
        u = self.fc(torch.cat([embedded, self.pre_fc_norm_hidden(hidden)], dim=-1))[None]
        rows = len(next_tokens)
        mask = torch.full((rows, rows), -torch.inf).triu(1)[None, None]
        u = self.layers[0](u, text.rotary_emb(u, positions[:, None]), attention_mask=mask)
        return self.norm(u[0] if isinstance(u, tuple) else u)[0]

    @torch.no_grad()
    def logits(self, d: Tensor) -> Tensor:
        return self._text[0].lm_head(d)


def prompt(seed: int, count: int = 60) -> tuple[Tensor, Tensor]:
    return oracle.random_tokens(count, seed), oracle.media_positions([20, (4, 6), count - 44])


@pytest.mark.parametrize("kind", KINDS)
def test_aligned_sequence_equals_transformers(kind: Kind) -> None:
    text, head = models(kind)
    tokens, positions = prompt(1)
    hidden = text.forward(tokens, positions, text.new_state())
    assert (hidden - oracle.hf_hidden(kind, tokens, positions)).abs().max() < 2e-5
    # Pairs: the next token with this position's hidden row.
    pairs = (tokens[1:], hidden[:-1], positions[:, :-1])
    theirs = HfMtp(kind)
    wanted = theirs.logits(theirs(*pairs))
    cache = head.new_cache()
    found = head.logits(head.forward(*pairs, cache))
    error = (found - wanted).abs().max().item()
    print(f"max_logit_error={error:.2e} case={kind}-mtp")
    assert error <= 1e-4
    assert cache.length == 59

    stepwise = head.new_cache()
    rows = [
        head.forward(pairs[0][i : i + 1], pairs[1][i : i + 1], pairs[2][:, i : i + 1], stepwise)
        for i in range(59)
    ]
    assert (head.logits(torch.cat(rows)) - wanted).abs().max() <= 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_equal_a_run_without_any_cache(kind: Kind) -> None:
    text, head = models(kind)
    theirs = HfMtp(kind)
    for seed in range(4):
        tokens, positions = prompt(seed)
        hidden = text.forward(tokens, positions, text.new_state())
        first = int(text.logits(hidden[-1:]).argmax())
        # The newest pair: the token just drawn with the last hidden row.
        pairs = [torch.cat([tokens[1:], torch.tensor([first])]), hidden, positions]
        cache = head.new_cache()
        newest = head.forward(pairs[0], pairs[1], pairs[2], cache)[-1]
        drafts = head.draft(newest, positions[:, -1], 5, cache)
        wanted = []
        while len(wanted) < 5:
            d = theirs(*pairs)[-1:]
            wanted.append(int(theirs.logits(d).argmax()))
            pairs[0] = torch.cat([pairs[0], torch.tensor(wanted[-1:])])
            pairs[1] = torch.cat([pairs[1], d])
            pairs[2] = torch.cat([pairs[2], pairs[2][:, -1:] + 1], dim=1)
        assert drafts == wanted
        assert cache.length == len(tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_made_from_drafts_leave_no_trace(kind: Kind) -> None:
    text, head = models(kind)
    tokens, positions = oracle.random_tokens(40, 9), text_positions(0, 40)
    hidden = text.forward(tokens, positions, text.new_state())
    straight = head.forward(tokens[1:], hidden[:-1], positions[:, :-1], head.new_cache())
    cache = head.new_cache()
    half = head.forward(tokens[1:21], hidden[:20], positions[:, :20], cache)
    head.draft(half[-1], positions[:, 19], 4, cache)
    rest = head.forward(tokens[21:], hidden[20:-1], positions[:, 20:-1], cache)
    assert (torch.cat([half, rest]) - straight).abs().max() < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_cache_at_the_last_token_drafts_something_else(kind: Kind) -> None:
    """The mistake that the alignment exists to prevent shows in the logits."""
    text, head = models(kind)
    tokens, positions = oracle.random_tokens(40, 10), text_positions(0, 40)
    hidden = text.forward(tokens, positions, text.new_state())
    whole = head.forward(tokens[1:], hidden[:-1], positions[:, :-1], head.new_cache())[-1:]
    alone = head.forward(tokens[-1:], hidden[-2:-1], positions[:, -2:-1], head.new_cache())
    assert (head.logits(whole) - head.logits(alone)).abs().max() > 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_float64_switch(kind: Kind) -> None:
    rows = []
    for dtype in (torch.float32, torch.float64):
        text, head = models(kind, dtype)
        tokens, positions = prompt(3)
        hidden = text.forward(tokens, positions, text.new_state())
        d = head.forward(tokens[1:], hidden[:-1], positions[:, :-1], head.new_cache())
        assert d.dtype == dtype
        rows.append(head.logits(d).double())
    assert 0 < (rows[0] - rows[1]).abs().max() <= 1e-4
