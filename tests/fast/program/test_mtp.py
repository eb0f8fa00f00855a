"""The prediction head in the fast engine: alignment and drafts against the reference's head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ninfer.artifact import Artifact
from ninfer.convert import convert
from ninfer.engine.requests import SamplingParameters
from ninfer.errors import OptionError
from ninfer.fast.prefix.content import Content
from ninfer.fast.program.mtp import mtp_layer
from ninfer.fast.program.mtp_lanes import KEPT_PLACES, UNTOLD, Wish
from ninfer.fast.program.program import Lane, Program, Row, Sampler
from ninfer.fast.program.verify import Block
from ninfer.reference.model import ReferenceModel
from ninfer.reference.mtp import MtpHead
from ninfer.reference.state import KvCache
from ninfer.reference.weights import load_mtp, load_text
from ninfer.sampling.draw import select_token
from tests.fast.program.models import read_config
from tests.fast.program.test_program import GREEDY, opened, prompt, sampler, taken_in
from tests.support.nano import VOCABULARY, nano_checkpoint

Artifacts = Callable[..., Path]
SAMPLED = SamplingParameters(1.0, 0.9, 20, 0.0, 1.5, 0.4, 77)


class Oracle:
    """The reference's head along one sequence of tokens."""

    def __init__(self, path: Path) -> None:
        with Artifact.open(path) as artifact:
            config = read_config(artifact)
            self.text = ReferenceModel(config, load_text(artifact, config, torch.float64))
            self.head = MtpHead(config, load_mtp(artifact, config, torch.float64), self.text)

    @torch.inference_mode()
    def pairs(self, tokens: list[int]) -> tuple[torch.Tensor, KvCache]:
        """The head's rows and cache after every pair of ``tokens``, the last one being pending."""
        positions = torch.arange(len(tokens) - 1).expand(3, -1)
        hidden = self.text.forward(torch.tensor(tokens[:-1]), positions, self.text.new_state())
        cache = self.head.new_cache()
        return self.head.forward(torch.tensor(tokens[1:]), hidden, positions, cache), cache

    @torch.inference_mode()
    def drafts(self, tokens: list[int], count: int, sampling: SamplingParameters, output: int) -> list[int]:
        """Drafts drawn as the target would; the last ``output`` tokens count for penalties."""
        rows, cache = self.pairs(tokens)
        hidden, place, drafts = rows[-1], len(tokens) - 2, list[int]()
        counts = np.bincount(tokens[len(tokens) - output :], minlength=VOCABULARY).astype(np.int32)
        while True:
            logits = self.head.logits(hidden[None])[0, :VOCABULARY].to(torch.float32).numpy()
            drafts.append(select_token(logits, sampling, counts, len(tokens) + len(drafts)))
            counts[drafts[-1]] += 1
            if len(drafts) == count:
                return drafts
            place += 1
            at = torch.full((3, 1), place)
            hidden = self.head.forward(torch.tensor(drafts[-1:]), hidden[None], at, cache)[0]


def assert_cache(program: Program, lane: Lane, cache: KvCache, places: int) -> None:
    """The lane's first ``places`` pairs are the reference's."""
    assert program.pages is not None
    pool, at = program.pages.layers[mtp_layer(program.config)], np.arange(places)
    where = (lane.block_table[at // 64], slice(None), at % 64)
    for found, wanted in ((pool.keys, cache.keys), (pool.values, cache.values)):
        exact = wanted[:places].numpy()
        assert np.abs(found[where] - exact).max() < 2e-4 * np.abs(exact).max()


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("kind", "recipe"), [("dense", "bf16"), ("dense", "q4"), ("moe", "q8")])
def test_drafts_and_cache_are_the_references(
    artifact: Artifacts, kind: str, recipe: str, sampling: SamplingParameters
) -> None:
    """Prompts over several chunks, then rounds that commit none, some or all of their columns."""
    path = artifact(kind, recipe, mtp=True)
    oracle, random = Oracle(path), np.random.default_rng(3)
    with opened(path, mtp=True, prefill_chunk=64) as program:
        assert program.mtp is not None
        for length in (1, 63, 64, 65, 150):
            tokens = prompt(length, length)
            lane, row = taken_in(program, tokens, 300)
            counts = np.zeros(VOCABULARY, np.int32)
            draws = Sampler(sampling, counts)
            text = [*tokens.tolist(), program.first(lane, row, draws)]
            counts[text[-1]] += 1
            known = Content(np.array(text, np.int32))
            program.mtp.begin(lane, known)
            for columns in (3, 1, 8, 2):
                wanted = oracle.drafts(text, 4, sampling, len(text) - length)
                (found,) = program.mtp.draft([Wish(lane, draws, 4)])
                assert found.tolist() == wanted
                block = Block(
                    lane, np.array([text[-1], *random.integers(0, 512, columns - 1)], np.int32), draws
                )
                (drawn,) = program.verify([block])
                kept = int(random.integers(1, columns + 1))
                # What is kept need not have been drawn: whatever is committed, the pairs are true.
                outputs = [*block.tokens[1:kept].tolist(), int(drawn[kept - 1])]
                program.commit([block], [kept])
                known.extend(outputs)
                program.mtp.committed(lane, 0, outputs)
                for token in outputs:
                    counts[token] += 1
                text += outputs
            program.mtp.settle(lane)
            assert_cache(program, lane, oracle.pairs(text)[1], len(text) - 2)
            program.mtp.forget(lane)
            program.close_lane(lane)


def test_rounds_keep_what_a_silent_drafter_will_ask_for(artifact: Artifacts) -> None:
    """Ordinary rounds of two lanes past the end of what is kept, told of as rarely as may be."""
    path = artifact("dense", mtp=True)
    oracle, lengths = Oracle(path), (50, 20)
    with opened(path, mtp=True, prefill_chunk=64, max_context=1024, pages=32) as program:
        assert program.mtp is not None
        lanes, texts, draws = [], [], sampler()
        for length in lengths:
            tokens = prompt(length, length)
            lane, row = taken_in(program, tokens, 900)
            texts.append(Content(np.append(tokens, program.first(lane, row, draws))))
            program.mtp.begin(lane, texts[-1])
            lanes.append(lane)
        for number in range(1, KEPT_PLACES + 3 * UNTOLD + 5):
            pending = [int(text.tokens(len(text) - 1, len(text))[0]) for text in texts]
            drawn = program.round(
                [Row(lane, token, draws) for lane, token in zip(lanes, pending, strict=True)]
            )
            for row, (lane, text, token) in enumerate(zip(lanes, texts, drawn, strict=True)):
                text.append(token)
                if number % UNTOLD == 0:
                    program.mtp.committed(lane, row, (token,))
        for lane, text in zip(lanes, texts, strict=True):
            tokens = text.tokens(0, len(text)).tolist()
            (found,) = program.mtp.draft([Wish(lane, draws, 3)])
            assert found.tolist() == oracle.drafts(tokens, 3, GREEDY, 1)
            assert_cache(program, lane, oracle.pairs(tokens)[1], len(tokens) - 2)


def test_lanes_draft_what_they_would_draft_alone(artifact: Artifacts) -> None:
    """Other lanes, other numbers of drafts, none at all: a lane's own drafts stay the same."""
    with opened(artifact("dense", mtp=True), mtp=True) as program:
        assert program.mtp is not None
        lanes, wishes = [], []
        for seed, count in enumerate((5, 0, 15, 2)):
            tokens = prompt(seed, 40 + 30 * seed)
            lane, row = taken_in(program, tokens, 256)
            program.mtp.begin(lane, Content(np.append(tokens, program.first(lane, row, sampler()))))
            lanes.append(lane)
            wishes.append(Wish(lane, sampler(), count))
        together = [drafts.tolist() for drafts in program.mtp.draft(wishes)]
        assert [len(drafts) for drafts in together] == [5, 0, 15, 2]
        assert together == [program.mtp.draft([wish])[0].tolist() for wish in wishes]


def test_logits_that_are_no_numbers_end_a_draft(artifact: Artifacts) -> None:
    with opened(artifact("dense", mtp=True), mtp=True) as program:
        assert program.mtp is not None
        lane, _ = taken_in(program, prompt(1, 40), 128)
        program.mtp.last_row(lane)[:] = np.nan
        program.mtp.begin(lane, Content(np.append(prompt(1, 40), 3)))
        assert program.mtp.draft([Wish(lane, sampler(), 3)])[0].tolist() == []


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_proposal_head_drafts_among_its_own_ids(tmp_path: Path, sampling: SamplingParameters) -> None:
    """As the full head would with every other id masked; its rows keep their values here."""
    checkpoint = nano_checkpoint(tmp_path / "checkpoint")
    convert(checkpoint, tmp_path / "nano.ninfer", "bf16", proposal_rows=200)
    oracle = Oracle(tmp_path / "nano.ninfer")
    with Artifact.open(tmp_path / "nano.ninfer") as artifact:
        ids = artifact.parameter("proposal/token_ids")
        rows = torch.from_numpy(artifact.parameter("proposal/head").astype(np.float64))
    with opened(tmp_path / "nano.ninfer", mtp=True, proposal_head=True) as program:
        assert program.mtp is not None
        tokens = prompt(5, 90)
        lane, row = taken_in(program, tokens, 300)
        counts = np.zeros(VOCABULARY, np.int32)
        text = [*tokens.tolist(), program.first(lane, row, Sampler(sampling, counts))]
        counts[text[-1]] += 1
        program.mtp.begin(lane, Content(np.array(text, np.int32)))
        (found,) = program.mtp.draft([Wish(lane, Sampler(sampling, counts), 6)])

        def logits(hidden: torch.Tensor) -> torch.Tensor:
            full = torch.full((len(hidden), VOCABULARY), -torch.inf, dtype=torch.float64)
            full[:, ids] = hidden @ rows.T
            return full

        oracle.head.logits = logits  # type: ignore[method-assign]
        assert found.tolist() == oracle.drafts(text, 6, sampling, 1)
        assert set(found.tolist()) <= set(ids.tolist())


def test_a_missing_proposal_head_is_named(artifact: Artifacts) -> None:
    with (
        pytest.raises(OptionError, match="--lm-head-draft: the artifact has no proposal head"),
        opened(artifact("dense", mtp=True), mtp=True, proposal_head=True),
    ):
        pass
