"""Verifying drafts on the GPU program, in Triton's interpreter: columns draw as single steps would, and only
what is committed leaves a trace.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ninfer.fast.memory.lanes import Resume
from ninfer.fast.program.gpu.program import GpuProgram
from ninfer.fast.program.verify import Block
from ninfer.sampling.parameters import SamplingParameters
from tests.fast.gpu.programs import small_artifact, small_program
from tests.support.nano import VOCABULARY

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
STEPS = 5
GREEDY = SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 0.0, 1)
PENALISED = SamplingParameters(1.2, 0.95, 20, 0.0, 1.5, 0.7, (5 << 32) + 3)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> GpuProgram:
    """Room for two lanes of one page."""
    path, _ = small_artifact(tmp_path_factory.mktemp("gpu"))
    return small_program(path, 64)


def opened(program: GpuProgram, seed: int, length: int) -> Any:
    """A lane behind a random prompt."""
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, length).astype(np.int32)
    lane = program.open_lane(64)
    program.prefill(lane, tokens, np.tile(np.arange(length, dtype=np.int32), (3, 1)))
    return lane


def sampler(sampling: SamplingParameters) -> Any:
    """One that has drawn nothing."""
    return SimpleNamespace(parameters=sampling, counts=np.zeros(VOCABULARY, np.int32))


def committed_bytes(program: GpuProgram, lane: Any) -> bytes:
    """All of a lane that counts: its state image and its keys and values below the frontier."""
    assert program.pages is not None
    parts = [program.states.images[lane.slot].numpy().tobytes()]
    places = np.arange(lane.frontier)
    parts += [
        plane[lane.block_table[places // 64], :, places % 64].numpy().tobytes()
        for _, pool in sorted(program.pages.layers.items())
        for plane in (pool.keys, pool.key_scales, pool.values, pool.value_scales)
    ]
    return b"".join(parts)


@pytest.mark.timeout(300)
def test_accepted_columns_equal_single_steps_and_rejected_ones_leave_nothing(program: GpuProgram) -> None:
    """Gate 2: a greedy and a penalised lane in one round, of different widths, one to four accepted."""
    firsts, samplings = (3, 5), (GREEDY, PENALISED)
    wanted: list[tuple[list[int], list[bytes]]] = [([], []), ([], [])]
    lengths = (7, 11)
    lanes = [opened(program, seed, length) for seed, length in enumerate(lengths)]
    saved = [program.memory.copy_state(lane) for lane in lanes]
    drawers = [sampler(sampling) for sampling in samplings]
    tokens = list(firsts)
    for _ in range(STEPS):
        for drawer, token in zip(drawers, tokens, strict=True):
            drawer.counts[token] += 1
        rows = [
            SimpleNamespace(lane=lane, token=token, sampler=drawer)
            for lane, token, drawer in zip(lanes, tokens, drawers, strict=True)
        ]
        tokens = program.round(rows)
        for lane, token, (drawn, states) in zip(lanes, tokens, wanted, strict=True):
            drawn.append(token)
            states.append(committed_bytes(program, lane))
    for lane, slot, length in zip(lanes, saved, lengths, strict=True):
        program.states.copy(slot, lane.slot)
        program.memory.drop_slot(slot)
        lane.frontier = length
    drawers = [sampler(sampling) for sampling in samplings]
    outputs: list[list[int]] = [[first] for first in firsts]
    for drawer, first in zip(drawers, firsts, strict=True):
        drawer.counts[first] += 1
    # Columns of each lane, and how many of its drafts are right.
    for cycle, plan in enumerate((((3, 1), (1, 0)), ((3, 0), (4, 3)))):
        blocks, kept = [], []
        for index, (columns, right) in enumerate(plan):
            done = len(outputs[index])
            truth = np.array([outputs[index][-1], *wanted[index][0][done - 1 :]][:columns], np.int32)
            truth[1 + right :] = (truth[1 + right :] + 1) % VOCABULARY
            blocks.append(Block(lanes[index], truth, drawers[index]))
            kept.append(1 + right)
        before = [committed_bytes(program, lane) for lane in lanes]
        drawn = program.verify(blocks)
        for lane, block, bytes_before in zip(lanes, blocks, before, strict=True):
            if len(block.tokens) > 1:
                assert committed_bytes(program, lane) == bytes_before, "a verified column left a trace"
        if cycle == 1:
            kept[0] = 0  # nothing at all is kept
        program.commit(blocks, kept)
        for index, (lane, count) in enumerate(zip(lanes, kept, strict=True)):
            new = drawn[index][:count].tolist()
            for token in new:
                drawers[index].counts[token] += 1
            outputs[index] += new
            done = len(outputs[index]) - 1
            assert outputs[index][1:] == wanted[index][0][:done]
            assert committed_bytes(program, lane) == wanted[index][1][done - 1]
    for lane in lanes:
        program.close_lane(lane)
    program.check_integrity()


def test_a_lane_resumes_from_a_copied_image_and_tail_page(program: GpuProgram) -> None:
    """What the prefix cache keeps of a lane is all that another needs; slots and pages come back."""
    lane = opened(program, 2, 9)
    slot, page = program.memory.copy_state(lane), program.memory.copy_tail(lane)
    other = program.open_lane()
    program.memory.resume(other, Resume([], page, slot, lane.frontier, lane.shift))
    program.memory.grow(other, 64)
    assert other.pages != lane.pages
    assert committed_bytes(program, other) == committed_bytes(program, lane)
    drawn = program.round(
        [SimpleNamespace(lane=one, token=11, sampler=sampler(GREEDY)) for one in (lane, other)]
    )
    assert drawn[0] == drawn[1]
    assert committed_bytes(program, other) == committed_bytes(program, lane)
    program.memory.drop_slot(slot)
    program.memory.drop_page(page)
    for one in (lane, other):
        program.close_lane(one)
    program.check_integrity()
