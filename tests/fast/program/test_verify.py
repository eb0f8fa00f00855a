"""Verifying drafts: columns draw as single steps would, and only what is committed leaves a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from ninfer.engine.requests import SamplingParameters
from ninfer.fast.memory.lanes import Lane
from ninfer.fast.program.program import Program, Row, Sampler, Tokens
from ninfer.fast.program.verify import Block
from tests.fast.program.test_program import GREEDY, opened, prompt, taken_in
from tests.support.nano import VOCABULARY

Artifacts = Callable[..., Path]
STEPS = 120
PENALISED = SamplingParameters(1.2, 0.95, 20, 0.0, 1.5, 0.7, (5 << 32) + 3)
MODELS = [
    ("dense", "float32", "float32"),
    ("dense", "bf16", "float32"),
    ("dense", "int8", "float32"),
    ("dense", "k8v4", "float32"),
    ("moe", "float32", "float32"),
    ("dense", "bf16", "bf16"),
    ("moe", "bf16", "bf16"),
]


def committed_bytes(program: Program, lane: Lane) -> bytes:
    """All of a lane that counts: its state image and its keys and values below the frontier."""
    image = program.states.image(lane.slot)[: program.states.hidden_offset].tobytes()
    places = np.arange(lane.frontier)
    where = (lane.block_table[places // 64], slice(None), places % 64)
    assert program.pages is not None
    planes = (
        plane
        for _, pool in sorted(program.pages.layers.items())
        for plane in (pool.keys, pool.values, pool.key_scales, pool.value_scales)
    )
    return b"".join([image, *(np.ascontiguousarray(plane[where]).tobytes() for plane in planes)])


def stepped(
    program: Program, lane: Lane, token: int, sampling: SamplingParameters, count: int
) -> tuple[list[int], list[bytes]]:
    """``count`` ordinary rounds of one lane: what was drawn, and the committed bytes after each."""
    counts = np.zeros(VOCABULARY, np.int32)
    drawn, states = [], []
    counts[token] += 1
    for _ in range(count):
        (token,) = program.round([Row(lane, token, Sampler(sampling, counts))])
        counts[token] += 1
        drawn.append(token)
        states.append(committed_bytes(program, lane))
    return drawn, states


@pytest.mark.clause_early("EXEC-015", "HTTP-029", "NGRAM-013", "NGRAM-015")
@pytest.mark.parametrize("sampling", [GREEDY, PENALISED], ids=["greedy", "penalised"])
@pytest.mark.parametrize(
    ("kind", "kv_format", "activations"), MODELS, ids=["-".join(model) for model in MODELS]
)
def test_accepted_columns_equal_single_steps_and_rejected_ones_leave_nothing(
    artifact: Artifacts, kind: str, kv_format: str, activations: str, sampling: SamplingParameters
) -> None:
    """Gate 2: lanes of different widths in one round, every number of accepted columns, every KV format."""
    lengths, widths = (50, 64, 130), (1, 16, 24)
    firsts = (3, 5, 7)
    with opened(artifact(kind), kv_format=kv_format, activations=activations) as program:
        wanted = []
        for seed, length in enumerate(lengths):
            lane, _ = taken_in(program, prompt(seed, length), 256)
            wanted.append(stepped(program, lane, firsts[seed], sampling, STEPS))
            program.close_lane(lane)
        lanes = [taken_in(program, prompt(seed, length), 256)[0] for seed, length in enumerate(lengths)]
        counts = [np.zeros(VOCABULARY, np.int32) for _ in lanes]
        outputs: list[list[int]] = [[first] for first in firsts]
        for total, first in zip(counts, firsts, strict=True):
            total[first] += 1
        random = np.random.default_rng(1)
        for cycle in range(8):
            blocks = []
            for index, lane in enumerate(lanes):
                done = len(outputs[index])
                columns = min(widths[(index + cycle) % 3], STEPS - done)
                truth = [outputs[index][-1], *wanted[index][0][done - 1 :]][:columns]
                tokens = np.array(truth, np.int32)
                right = int(random.integers(0, columns)) if columns > 1 else 0
                tokens[1 + right :] = (tokens[1 + right :] + 1) % VOCABULARY  # wrong from here on
                blocks.append(Block(lane, tokens, Sampler(sampling, counts[index])))
            before = [committed_bytes(program, lane) for lane in lanes]
            drawn = program.verify(blocks)
            for lane, block, bytes_before in zip(lanes, blocks, before, strict=True):
                if len(block.tokens) > 1:
                    assert committed_bytes(program, lane) == bytes_before, "a verified column left a trace"
            kept = [accepted(block.tokens, row) for block, row in zip(blocks, drawn, strict=True)]
            if cycle == 4:  # nothing at all is kept of the wider blocks
                kept = [0 if len(block.tokens) > 1 else 1 for block in blocks]
            program.commit(blocks, kept)
            for index, (lane, count) in enumerate(zip(lanes, kept, strict=True)):
                new = drawn[index][:count].tolist()
                for token in new:
                    counts[index][token] += 1
                outputs[index] += new
                tokens, states = wanted[index]
                assert outputs[index][1:] == tokens[: len(outputs[index]) - 1]
                assert lane.frontier == lengths[index] + len(outputs[index]) - 1
                after = states[len(outputs[index]) - 2] if len(outputs[index]) > 1 else before[index]
                assert committed_bytes(program, lane) == after
        assert min(map(len, outputs)) > 8
        for lane in lanes:
            program.close_lane(lane)
        program.check_integrity()


def accepted(tokens: Tokens, drawn: Tokens) -> int:
    """Columns whose input is right: the pending token and every draft that equals the draw before it."""
    count = 1
    while count < len(tokens) and tokens[count] == drawn[count - 1]:
        count += 1
    return count


@pytest.mark.parametrize("columns", [(64,), (16, 16, 16, 16), (63, 1)])
def test_a_round_has_room_for_sixty_four_columns(artifact: Artifacts, columns: Sequence[int]) -> None:
    with opened(artifact("dense")) as program:
        lanes = [taken_in(program, prompt(index, 40), 128)[0] for index in range(len(columns))]
        blocks = [
            Block(lane, prompt(9, count), Sampler(GREEDY, np.zeros(VOCABULARY, np.int32)))
            for lane, count in zip(lanes, columns, strict=True)
        ]
        assert [len(drawn) for drawn in program.verify(blocks)] == list(columns)
        program.commit(blocks, columns)
        assert [lane.frontier for lane in lanes] == [40 + count for count in columns]
        with pytest.raises(AssertionError):
            program.verify([*blocks, blocks[0]])


def test_a_second_penalised_occurrence_within_a_block_counts(artifact: Artifacts) -> None:
    """Drafts of one token: each column sees one occurrence more, as after single steps."""
    heavy = SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 2.0, 0)
    with opened(artifact("dense")) as program:
        lane, _ = taken_in(program, prompt(1, 40), 128)
        counts = np.zeros(VOCABULARY, np.int32)
        (token,) = program.round([Row(lane, 3, Sampler(heavy, counts))])
        frontier = lane.frontier
        tokens = np.array([token, *[token] * 5], np.int32)
        counts[token] += 1
        block = Block(lane, tokens, Sampler(heavy, counts))
        (drawn,) = program.verify([block])
        logits = program.logits(6)[:, :VOCABULARY].copy()
        program.commit([block], [0])
        assert lane.frontier == frontier
        for column in range(6):
            seen = np.zeros(VOCABULARY, np.float32)
            seen[token] = 1 + column
            scores = logits[column] - (np.float32(0) * (seen > 0) + np.float32(2) * seen)
            assert drawn[column] == int(scores.argmax())
