"""The reference engine over real artifacts: answers, ends, refusals, usage."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ninfer.artifact import Artifact, ArtifactPlan, ArtifactWriter, Component, PlannedTensor
from ninfer.engine.events import Delta
from ninfer.engine.settings import EngineSettings
from ninfer.errors import ArtifactError, EngineError, RequestError
from ninfer.model.config import parse_text_config
from ninfer.model.presets import Preset
from ninfer.prompt.tokenizer import Tokenizer
from ninfer.reference.engine import PREFILL_PIECE, ReferenceEngine, open_engine
from ninfer.reference.model import ReferenceModel
from ninfer.reference.weights import load_text
from ninfer.sampling.parameters import SamplingOverrides
from ninfer.sampling.resolve import resolve_sampling
from tests.model.published import QWEN_2B
from tests.reference import oracle
from tests.reference.requests import request, run, sampling
from tests.support.nano import ROWS, VOCABULARY
from tests.support.nano_weights import (
    Kind,
    artifact_config,
    checkpoint_tensors,
    logical_weights,
    text_config_members,
)

PROMPT = oracle.random_tokens(40, seed=77, vocab=VOCABULARY).tolist()


@pytest.fixture(scope="module")
def engine(dense_artifact: Path) -> ReferenceEngine:
    return open_engine(EngineSettings("reference", str(dense_artifact), max_context=4096))


@pytest.fixture(scope="module")
def tokenizer(dense_artifact: Path) -> Tokenizer:
    with Artifact.open(dense_artifact) as artifact:
        return Tokenizer.from_resources(
            artifact.resource("text", "tokenizer.json"), artifact.resource("text", "tokenizer_config.json")
        )


# ------------------------------------------------------------------ answers


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_greedy_answers_equal_transformers(kind: Kind, dense_artifact: Path, moe_artifact: Path) -> None:
    """From the artifact's bytes to ids, against transformers on the checkpoint it was converted from."""
    path = dense_artifact if kind == "dense" else moe_artifact
    theirs = AutoModelForCausalLM.from_pretrained(path.parent / "checkpoint", dtype=torch.float32).eval()
    # Padding rows are not drawn: transformers must not draw them either.
    theirs.lm_head.weight.data[VOCABULARY:] = 0
    ours = open_engine(EngineSettings("reference", str(path), max_context=4096))
    for length in (1, 40, 200):
        prompt = oracle.random_tokens(length, seed=length, vocab=VOCABULARY).tolist()
        assert run(ours, request(prompt, max_tokens=64)).ids == oracle.greedy(theirs, prompt, 64)


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_decoding_goes_on_from_the_largest_position(
    kind: Kind, dense_artifact: Path, moe_artifact: Path
) -> None:
    path = dense_artifact if kind == "dense" else moe_artifact
    ours = open_engine(EngineSettings("reference", str(path), max_context=4096))
    positions = oracle.media_positions([10, (4, 6), 9])
    prompt = oracle.random_tokens(positions.shape[1], seed=3, vocab=VOCABULARY).tolist()
    answer = run(ours, request(prompt, max_tokens=32, positions=positions.tolist()))
    members = text_config_members(kind, vocab=ROWS)
    model = ReferenceModel(
        artifact_config(members), logical_weights(members, checkpoint_tensors(members), torch.float64)
    )
    # After the last text position every axis counts on: 10 + 6 + 9.
    axes = torch.cat([positions, torch.arange(25, 57).expand(3, 32)], dim=1)
    sequence = torch.tensor(prompt + answer.ids)
    logits = model.logits(model.forward(sequence, axes, model.new_state()))
    assert logits[42:-1, :VOCABULARY].argmax(-1).tolist() == answer.ids
    assert run(ours, request(prompt, max_tokens=32)).ids != answer.ids


def test_text_is_that_of_the_ids(engine: ReferenceEngine, tokenizer: Tokenizer) -> None:
    answer = run(engine, request(PROMPT, max_tokens=40))
    assert answer.finished.reason == "length"
    assert len(answer.ids) == answer.finished.usage.completion_tokens == 40
    assert answer.text() == b"".join(map(tokenizer.token_bytes, answer.ids)).decode(errors="replace")
    assert answer.text("reasoning") == ""


@pytest.mark.clause_early("FIELD-004")
def test_temperature_zero_is_greedy_and_repeatable(engine: ReferenceEngine) -> None:
    answers = [run(engine, request(PROMPT, sampling(0.0, seed))).ids for seed in (1, 1, 2)]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.clause_early("FIELD-004")
def test_top_p_narrows_a_seeded_answer(engine: ReferenceEngine) -> None:
    wide = run(engine, request(PROMPT, sampling(2.0, 3))).ids
    narrow = run(engine, request(PROMPT, sampling(2.0, 3, top_p=0.5))).ids
    one = run(engine, request(PROMPT, sampling(2.0, 3, top_p=0.0))).ids
    assert wide != narrow
    assert one == run(engine, request(PROMPT)).ids


@pytest.mark.clause_early("FIELD-005")
@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_penalties_change_a_seeded_answer(engine: ReferenceEngine, penalty: str) -> None:
    plain = run(engine, request(PROMPT, sampling(1.0, 3), 64)).ids
    raised, lowered = (
        run(engine, request(PROMPT, sampling(1.0, 3, **{penalty: value}), 64)).ids for value in (-2.0, 2.0)
    )
    assert len({tuple(plain), tuple(raised), tuple(lowered)}) == 3
    assert len(set(raised)) < len(set(lowered))


@pytest.mark.clause_early("FIELD-006", "OPT-091")
def test_equal_seeds_give_equal_tokens(engine: ReferenceEngine) -> None:
    minus_three = 2**64 - 3
    first, again, other = (
        run(engine, request(PROMPT, sampling(1.0, seed))).ids for seed in (minus_three, minus_three, 3)
    )
    assert first == again != other


@pytest.mark.clause_early("OPT-087", "FIELD-007")
def test_top_k_zero_answers_as_twenty(engine: ReferenceEngine) -> None:
    zero, twenty, two = (run(engine, request(PROMPT, sampling(2.0, 5, top_k=k), 48)).ids for k in (0, 20, 2))
    assert zero == twenty != two


@pytest.mark.clause_early("FIELD-008")
def test_min_p_one_is_greedy(engine: ReferenceEngine) -> None:
    strict = run(engine, request(PROMPT, sampling(2.0, 5, min_p=1.0))).ids
    assert strict == run(engine, request(PROMPT)).ids
    assert strict != run(engine, request(PROMPT, sampling(2.0, 5, min_p=0.0))).ids


@pytest.mark.clause_early("OPT-092", "PRESET-008")
def test_greedy_beats_a_request_s_temperature_and_seed(engine: ReferenceEngine) -> None:
    with_flag = [
        resolve_sampling(
            Preset(1.0, 0.95, 20, 0.0, 0.0, 0.0),
            SamplingOverrides(temperature=0.8),
            SamplingOverrides(temperature=1.5),
            greedy=True,
            seed=seed,
            fresh_seed=lambda: 0,
        )
        for seed in (1, 2)
    ]
    answers = [run(engine, request(PROMPT, parameters)).ids for parameters in with_flag]
    assert answers[0] == answers[1] == run(engine, request(PROMPT, sampling(0.0))).ids


def test_a_history_does_not_change_an_answer(engine: ReferenceEngine) -> None:
    alone = run(engine, request(PROMPT, sampling(1.0, 9), 24)).ids
    run(engine, request(PROMPT[::-1], sampling(1.0, 4), 24))
    assert run(engine, request(PROMPT, sampling(1.0, 9), 24)).ids == alone


def test_float64_answers_alike(dense_artifact: Path, engine: ReferenceEngine) -> None:
    exact = open_engine(EngineSettings("reference", str(dense_artifact), 4096, float64=True))
    assert run(exact, request(PROMPT, max_tokens=48)).ids == run(engine, request(PROMPT, max_tokens=48)).ids


def test_padding_rows_are_never_drawn(dense_artifact: Path, engine: ReferenceEngine) -> None:
    hot = run(engine, request(PROMPT, sampling(2.0, 1), 200))
    assert max(hot.ids) < VOCABULARY
    with Artifact.open(dense_artifact) as artifact:
        config = parse_text_config(artifact.directory.components["text"].config)
        weights = load_text(artifact, config, torch.float32)
    few = ReferenceEngine(ReferenceModel(config, weights), lambda token: b"x", 5, 4096)
    assert set(run(few, request(PROMPT, sampling(2.0, 1), 60)).ids) == set(range(5))


# ------------------------------------------------------------------ prefill


def test_progress_after_every_piece(engine: ReferenceEngine) -> None:
    prompt = oracle.random_tokens(2 * PREFILL_PIECE + 76, seed=5, vocab=VOCABULARY).tolist()
    answer = run(engine, request(prompt, max_tokens=4), queue_s=0.25)
    assert answer.started.prompt_tokens == len(prompt)
    assert (answer.started.cached_tokens, answer.started.queue_s) == (0, 0.25)
    assert [event.processed for event in answer.progress] == [PREFILL_PIECE, 2 * PREFILL_PIECE, len(prompt)]
    assert {(event.total, event.cached) for event in answer.progress} == {(len(prompt), 0)}
    elapsed = [event.elapsed_s for event in answer.progress]
    assert elapsed == sorted(elapsed)
    assert elapsed[0] > 0


@pytest.mark.clause_early("FIELD-003")
def test_no_output_still_processes_the_prompt(engine: ReferenceEngine) -> None:
    answer = run(engine, request(PROMPT, max_tokens=0))
    assert answer.progress[-1].processed == len(PROMPT)
    assert answer.deltas == []
    assert (answer.finished.reason, answer.finished.usage.completion_tokens) == ("length", 0)
    assert answer.finished.usage.prompt_tokens == len(PROMPT)


# ------------------------------------------------------------------ ends


def test_stop_token(engine: ReferenceEngine) -> None:
    free = run(engine, request(PROMPT, max_tokens=12)).ids
    stop = next(token for token in free if free.index(token) >= 3)
    answer = run(engine, request(PROMPT, max_tokens=12, stop_token_ids=(stop,)))
    assert answer.ids == free[: free.index(stop)]
    assert (answer.finished.reason, answer.finished.stop_string) == ("stop", None)
    assert answer.finished.usage.completion_tokens == free.index(stop) + 1
    ignoring = request(PROMPT, max_tokens=12, stop_token_ids=(stop,), ignore_stop_tokens=True)
    assert run(engine, ignoring).ids == free


@pytest.mark.clause_early("FIELD-011", "FIELD-012")
@pytest.mark.parametrize("channel", ["content", "reasoning"])
def test_stop_string(engine: ReferenceEngine, channel: str) -> None:
    free = run(engine, request(PROMPT, max_tokens=40, initial_channel=channel)).text(channel)
    stop = free[10:14]
    answer = run(engine, request(PROMPT, max_tokens=40, initial_channel=channel, stops=("never", stop)))
    assert answer.text(channel) == free[: free.index(stop)]
    assert (answer.finished.reason, answer.finished.stop_string) == ("stop", stop)
    assert answer.finished.usage.completion_tokens < 40


def test_the_context_s_end_is_an_end_by_length(dense_artifact: Path) -> None:
    small = open_engine(EngineSettings("reference", str(dense_artifact), max_context=len(PROMPT) + 5))
    answer = run(small, request(PROMPT, max_tokens=100))
    assert (answer.finished.reason, answer.finished.usage.completion_tokens) == ("length", 5)
    full = open_engine(EngineSettings("reference", str(dense_artifact), max_context=len(PROMPT)))
    answer = run(full, request(PROMPT, max_tokens=100))
    assert (answer.finished.reason, answer.finished.usage.completion_tokens) == ("length", 0)


@pytest.mark.parametrize(
    ("polls", "processed", "committed"), [(0, 0, 0), (1, 512, 0), (3, 1024, 1), (7, 1024, 5)]
)
def test_cancellation_is_seen_between_pieces_and_tokens(
    engine: ReferenceEngine, polls: int, processed: int, committed: int
) -> None:
    prompt = oracle.random_tokens(1024, seed=6, vocab=VOCABULARY).tolist()
    answers = itertools.chain([False] * polls, itertools.repeat(True))
    answer = run(engine, request(prompt, max_tokens=100), lambda: next(answers))
    assert answer.finished.reason == "cancelled"
    assert (answer.progress[-1].processed if answer.progress else 0) == processed
    assert answer.finished.usage.completion_tokens == len(answer.ids) == committed


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("tokens", "positions", "code", "words"),
    [
        ([], None, "invalid_prompt", "no tokens"),
        ([0] * 4097, None, "context_length_exceeded", "4097 tokens, more than the context of 4096"),
        ([1, ROWS], None, "invalid_prompt", f"0..{ROWS - 1}"),
        ([1, -1], None, "invalid_prompt", f"0..{ROWS - 1}"),
        ([1, 2], [[0], [0], [0]], "invalid_prompt", "1 positions for 2 tokens"),
    ],
)
def test_prompts_that_are_refused(
    engine: ReferenceEngine, tokens: list[int], positions: list[list[int]] | None, code: str, words: str
) -> None:
    with pytest.raises(RequestError, match=words) as failure:
        run(engine, request(tokens, positions=positions))
    assert failure.value.code == code


def test_a_prompt_as_long_as_the_context_is_taken(engine: ReferenceEngine) -> None:
    assert run(engine, request([7] * 4096, max_tokens=0)).finished.usage.prompt_tokens == 4096


def test_a_model_that_returns_nonsense_fails_its_request(dense_artifact: Path) -> None:
    with Artifact.open(dense_artifact) as artifact:
        config = parse_text_config(artifact.directory.components["text"].config)
        weights = load_text(artifact, config, torch.float32)
    weights["text/final_norm"][3] = torch.nan
    broken = ReferenceEngine(ReferenceModel(config, weights), lambda token: b"x", VOCABULARY, 4096)
    with pytest.raises(EngineError) as failure:
        run(broken, request(PROMPT))
    assert failure.value.code == "internal_error"


def test_text_held_for_a_stop_string_comes_before_a_failure(
    engine: ReferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(engine, request(PROMPT, max_tokens=8))
    logits, left = engine._logits, [5]

    def fail_at_last(hidden: torch.Tensor) -> np.ndarray:
        left[0] -= 1
        if left[0] == 0:
            raise AssertionError("ours")
        return logits(hidden)

    monkeypatch.setattr(engine, "_logits", fail_at_last)
    asked, told = request(PROMPT, max_tokens=8, stops=(f"{whole.text()}!",)), list[Delta]()

    def answer() -> None:
        for event in engine.generate(asked, lambda: False, 0.0):
            if isinstance(event, Delta):
                told.append(event)

    with pytest.raises(AssertionError, match="ours"):
        answer()
    assert [token for delta in told for token in delta.token_ids] == whole.ids[:4]
    assert whole.text().startswith("".join(delta.text for delta in told))


def test_what_is_no_artifact_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.ninfer").write_bytes(b"not one")
    with pytest.raises(ArtifactError):
        open_engine(EngineSettings("reference", str(tmp_path / "x.ninfer"), 4096))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"architectures": ["Qwen4ForCausalLM"], "model_type": "qwen4"},
            r"text\.config\.architectures",
        ),
        ({"architectures": ["Qwen3_5ForCausalLM"]}, r"text\.config\.model_type"),
        (QWEN_2B, r"tokenizer\.json"),
    ],
    ids=["unknown architecture", "no model type", "no tokenizer"],
)
def test_an_artifact_that_cannot_be_served_is_refused(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    plan = ArtifactPlan({"text": Component(config)}, (), (PlannedTensor("w", (4,), "fp32"),), {})
    with ArtifactWriter(tmp_path / "x.ninfer", plan) as writer:
        writer.write_tensor("w", np.zeros(4, np.float32))
        writer.publish()
    with pytest.raises(ArtifactError, match=words):
        open_engine(EngineSettings("reference", str(tmp_path / "x.ninfer"), 4096))


# ------------------------------------------------------------------ times


def test_times(dense_artifact: Path) -> None:
    with Artifact.open(dense_artifact) as artifact:
        config = parse_text_config(artifact.directory.components["text"].config)
        weights = load_text(artifact, config, torch.float32)
    ticks: Iterator[int] = itertools.count()
    clock = lambda: float(next(ticks))  # noqa: E731
    timed = ReferenceEngine(ReferenceModel(config, weights), lambda token: b"x", VOCABULARY, 4096, clock)
    usage = run(timed, request(PROMPT, max_tokens=5), queue_s=100.0).finished.usage
    # Ticks: start, prefill's start, its one piece, its end, then one per token.
    assert usage.prefill_s == 4  # up to the first token
    assert usage.decode_s == 4  # four intervals between five tokens
    assert usage.time_to_first_token_s == 104


def test_times_without_output(engine: ReferenceEngine) -> None:
    usage = run(engine, request(PROMPT, max_tokens=0)).finished.usage
    assert usage.prefill_s > 0
    assert usage.decode_s == 0
