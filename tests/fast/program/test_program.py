"""The program's own promises: memory handed out and taken back, frontiers, draws, rows without neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ninfer.artifact import Artifact
from ninfer.engine.requests import SamplingParameters
from ninfer.errors import EngineError
from ninfer.fast.memory.lanes import pages_for
from ninfer.fast.ops.select.contract import DEAD_END, NOT_A_NUMBER
from ninfer.fast.program.program import (
    Lane,
    Program,
    ProgramOptions,
    Row,
    Sampler,
    Tokens,
    check_drawn,
)
from ninfer.fast.program.verify import Block
from ninfer.reference.model import ReferenceModel
from ninfer.reference.weights import load_text
from tests.fast.program.models import read_config
from tests.support.nano import VOCABULARY

Artifacts = Callable[..., Path]
GREEDY = SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 0.0, 0)
SAMPLED = SamplingParameters(1.0, 0.95, 20, 0.0, 0.5, 0.1, 7)
ONLY = {"linear": ["linear_attention"] * 2, "attention": ["full_attention"] * 2}


@contextmanager
def opened(path: Path, **sizes: Any) -> Iterator[Program]:
    """A program with small pools."""
    fields = {
        "lanes": 4, "max_context": 512, "pages": 16, "kv_format": "float32", "prefill_chunk": 128,
        "threads": 1, "vocabulary": VOCABULARY,
    }  # fmt: skip
    with Artifact.open(path) as artifact:
        program = Program(artifact, read_config(artifact), ProgramOptions(**(fields | sizes)))
    with closing(program):
        yield program


def sampler(parameters: SamplingParameters = GREEDY) -> Sampler:
    return Sampler(parameters, np.zeros(VOCABULARY, np.int32))


def prompt(seed: int, length: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).astype(np.int32)


def text_axes(start: int, count: int) -> Tokens:
    return np.tile(np.arange(start, start + count, dtype=np.int32), (3, 1))


def taken_in(program: Program, tokens: Tokens, ceiling: int = 256) -> tuple[Lane, np.ndarray]:
    """A lane that has taken in ``tokens`` chunk by chunk, and its last residual row."""
    lane, chunk = program.open_lane(ceiling), program.options.prefill_chunk
    for begin in range(0, len(tokens), chunk):
        piece = tokens[begin : begin + chunk]
        row = program.prefill(lane, piece, text_axes(begin, len(piece)))
    return lane, row.copy()


def test_lanes_take_their_whole_ceiling_and_give_it_back(artifact: Artifacts) -> None:
    with opened(artifact("dense")) as program:
        assert [pages_for(tokens) for tokens in (1, 64, 65, 512)] == [1, 1, 2, 8]
        first, second = program.open_lane(129), program.open_lane(512)
        assert (len(first.pages), len(second.pages), program.free_pages) == (3, 8, 5)
        assert not set(first.pages) & set(second.pages)
        assert first.block_table[:3].tolist() == first.pages
        with pytest.raises(AssertionError, match="leaked"):
            program.check_integrity()
        program.close_lane(first)
        program.close_lane(second)
        assert program.free_pages == 16
        program.check_integrity()
        with pytest.raises(AssertionError, match="freed twice"):
            program.close_lane(second)


def test_a_lane_that_finds_no_slot_takes_no_pages(artifact: Artifacts) -> None:
    with opened(artifact("dense"), lanes=1) as program:
        lane = program.open_lane(64)
        with pytest.raises(IndexError):
            program.open_lane(64)
        assert program.free_pages == 15
        program.close_lane(lane)
        with pytest.raises(IndexError, match="17 pages asked for, 16 free"):
            program.open_lane(17 * 64)
        program.check_integrity()


def test_a_slot_comes_zeroed_whatever_its_last_owner_left(artifact: Artifacts) -> None:
    with opened(artifact("dense"), lanes=1) as program:
        lane, row = taken_in(program, prompt(1, 100))
        program.first(lane, row, sampler())
        wanted = program.logits(1).copy()
        program.close_lane(lane)
        program.states._memory[:] = 0xFF
        lane, row = taken_in(program, prompt(1, 100))
        program.first(lane, row, sampler())
        assert np.array_equal(program.logits(1), wanted)


@pytest.mark.parametrize("length", [0, 129])
def test_a_chunk_has_its_size(artifact: Artifacts, length: int) -> None:
    with opened(artifact("dense")) as program:
        lane = program.open_lane(200)
        with pytest.raises(AssertionError):
            program.prefill(lane, prompt(0, length), text_axes(0, length))


def test_positions_go_on_from_the_largest_one(artifact: Artifacts) -> None:
    """Media rows span fewer positions than tokens, their axes differ, and a later chunk may lie below."""
    with opened(artifact("dense"), prefill_chunk=64) as program:
        lane, tokens = program.open_lane(200), prompt(3, 70)
        axes = np.concatenate([text_axes(0, 10), np.repeat(text_axes(30, 30), 2, 1)], 1)
        axes[1] //= 2
        program.prefill(lane, tokens[:64], axes[:, :64])
        assert (lane.frontier, lane.frontier + lane.shift) == (64, int(axes[:, :64].max()) + 1)
        row = program.prefill(lane, tokens[64:], axes[:, 64:]).copy()
        assert (lane.frontier, lane.frontier + lane.shift) == (70, int(axes.max()) + 1)
        low = program.prefill(lane, tokens[:3], text_axes(1, 3))
        assert low.shape == row.shape
        assert (lane.frontier, lane.frontier + lane.shift) == (73, int(axes.max()) + 1)


def assert_like_the_reference(program: Program, path: Path, tokens: Tokens, axes: Tokens, steps: int) -> None:
    """Prefill, then greedy rounds: logits as the reference's float64 ones along the same tokens."""
    with Artifact.open(path) as file:
        config = read_config(file)
        reference = ReferenceModel(config, load_text(file, config, torch.float64))
    with torch.inference_mode():
        lane, state = program.open_lane(256), reference.new_state()
        row = program.prefill(lane, tokens, axes)
        hidden = reference.forward(torch.from_numpy(tokens).long(), torch.from_numpy(axes).long(), state)[-1:]
        token = program.first(lane, row, sampler())
        for step in range(steps):
            np.testing.assert_allclose(
                program.logits(1)[0], reference.logits(hidden)[-1].numpy(), atol=1e-4, err_msg=f"step {step}"
            )
            place = torch.full((3, 1), int(axes.max()) + 1 + step)
            hidden = reference.forward(torch.tensor([token]), place, state)
            (token,) = program.round([Row(lane, token, sampler())])
        program.close_lane(lane)
        program.check_integrity()


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_rounds_go_on_where_media_ended(artifact: Artifacts, kind: str) -> None:
    """Three different axes in the prompt, then text."""
    axes = np.random.default_rng(5).integers(0, 40, (3, 90)).astype(np.int32)
    with opened(artifact(kind)) as program:
        assert_like_the_reference(program, artifact(kind), prompt(4, 90), axes, steps=20)


@pytest.mark.parametrize("layers", ONLY)
@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_models_of_one_mixer_only(artifact: Artifacts, kind: str, layers: str) -> None:
    path = artifact(kind, layer_types=ONLY[layers], num_hidden_layers=2)
    with opened(path) as program:
        assert_like_the_reference(program, path, prompt(6, 100), text_axes(0, 100), steps=5)


def test_ids_outside_the_vocabulary_are_never_drawn(artifact: Artifacts) -> None:
    with opened(artifact("dense"), vocabulary=7) as program:
        lane, row = taken_in(program, prompt(7, 20))
        for parameters in (GREEDY, SAMPLED):
            assert program.first(lane, row, sampler(parameters)) < 7
        assert program.logits(1).shape == (1, program.config.vocab)


def test_a_lane_that_is_not_a_number_is_told_as_such(artifact: Artifacts) -> None:
    with opened(artifact("dense")) as program:
        lanes = [taken_in(program, prompt(seed, 30))[0] for seed in range(3)]
        program.states.image(lanes[1].slot)[:] = 0xFF
        drawn = program.round([Row(lane, 5, sampler(SAMPLED)) for lane in lanes])
        assert drawn[1] == NOT_A_NUMBER
        assert min(drawn[0], drawn[2]) >= 0


@pytest.mark.parametrize(
    ("value", "message"), [(NOT_A_NUMBER, "not a number"), (DEAD_END, "every id is masked")]
)
def test_what_is_no_token_is_the_rows_failure(value: int, message: str) -> None:
    assert check_drawn(0) == 0
    with pytest.raises(EngineError, match=message) as caught:
        check_drawn(value)
    assert caught.value.code == "internal_error"


@pytest.mark.parametrize(
    ("kind", "recipe", "kv_format"), [("dense", "groupwise-int", "int8"), ("moe", "q4", "bf16")]
)
def test_a_lane_does_not_know_how_wide_its_round_is(
    artifact: Artifacts, kind: str, recipe: str, kv_format: str
) -> None:
    """Logits, state image and stored rows of a lane: alone, and in rounds of up to 64 rows in any order."""
    lanes, random = 64, np.random.default_rng(8)
    with opened(artifact(kind, recipe), lanes=lanes, pages=2 * lanes, kv_format=kv_format) as program:
        all_lanes = [taken_in(program, prompt(i, int(random.integers(1, 100))), 128)[0] for i in range(lanes)]
        tokens = prompt(9, lanes)
        before = program.states._memory.copy()
        assert program.pages is not None
        pools = [
            plane
            for pool in program.pages.layers.values()
            for plane in (pool.keys, pool.values, pool.key_scales, pool.value_scales)
        ]

        def step(chosen: list[int]) -> dict[int, bytes]:
            """One round of these lanes from the common start: what it left, lane by lane."""
            program.states._memory[:] = before
            rows = [Row(all_lanes[i], int(tokens[i]), sampler(SAMPLED)) for i in chosen]
            drawn = program.round(rows)
            logits, result = program.logits(len(rows)).copy(), {}
            for index, i in enumerate(chosen):
                lane = all_lanes[i]
                lane.frontier -= 1
                page, slot = lane.block_table[lane.frontier // 64], lane.frontier % 64
                stored = b"".join(plane[page, :, slot].tobytes() for plane in pools)
                image = program.states.image(lane.slot).tobytes()
                result[i] = logits[index].tobytes() + image + stored + bytes([drawn[index] & 0xFF])
            return result

        alone = {i: step([i])[i] for i in range(lanes)}
        for width in (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 48, 63, 64):
            chosen = random.permutation(lanes)[:width].tolist()
            for i, left in step(chosen).items():
                assert left == alone[i], f"lane {i} in a round of {width}"


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("verified", [0, 5])
def test_a_narrow_round_takes_short_prompts_and_steps_as_the_widest_does(
    artifact: Artifacts, kind: str, verified: int
) -> None:
    """Prompts of up to 64 tokens are columns of one round, however few columns a verification has."""
    found = []
    for columns in (64, verified):
        with opened(artifact(kind), lanes=2, verified=columns) as program:
            lanes = [taken_in(program, prompt(length, length)) for length in (64, 23)]
            drawn = [program.first(lane, row, sampler()) for lane, row in lanes]
            for _ in range(3):
                rows = [Row(lane, token, sampler()) for (lane, _), token in zip(lanes, drawn, strict=True)]
                drawn = program.round(rows)
                logits = program.logits(2).copy()
            if verified:
                lane = lanes[1][0]
                block = Block(lane, np.array([drawn[1], *prompt(3, 4)], np.int32), sampler())
                program.verify([block])
                program.commit([block], [3])
            images = [program.states.image(lane.slot).copy() for lane, _ in lanes]
            found.append((drawn, logits, images, program.workspace_bytes))
    widest, narrow = found
    assert narrow[0] == widest[0]
    assert np.array_equal(narrow[1], widest[1])
    assert all(map(np.array_equal, narrow[2], widest[2]))
    assert narrow[3] < widest[3]


def test_a_verification_that_is_wider_than_planned_is_refused(artifact: Artifacts) -> None:
    with opened(artifact("dense"), verified=5) as program:
        lane, _ = taken_in(program, prompt(1, 3))
        with pytest.raises(AssertionError):
            program.verify([Block(lane, prompt(2, 6), sampler())])
