"""The prediction head on the GPU program, in Triton's interpreter, beside that of the CPU program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ninfer.artifact import Artifact
from ninfer.fast.ops.select import gpu as select
from ninfer.fast.prefix.content import Content
from ninfer.fast.program.mtp_lanes import Wish
from ninfer.fast.program.program import Program, ProgramOptions, Row, Sampler
from ninfer.fast.program.verify import Block
from ninfer.sampling.draw import select_token
from ninfer.sampling.parameters import SamplingParameters
from tests.fast.gpu.late import make_late
from tests.fast.gpu.programs import small_artifact, small_program
from tests.support.nano import VOCABULARY

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
GREEDY = SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 0.0, 1)
PENALISED = SamplingParameters(0.0, 1.0, 0, 0.0, 1.5, 0.7, 1)
CONTEXT = 64


class Script:
    """The same life of two lanes on either program: chunks, first tokens, drafts, verifications and steps."""

    def __init__(self, program: Any, following: list[list[int]] | None = None) -> None:
        self.program, self.following = program, following
        self.lanes = [program.open_lane(CONTEXT) for _ in range(2)]
        self.samplers = [
            Sampler(sampling, np.zeros(VOCABULARY, np.int32)) for sampling in (GREEDY, PENALISED)
        ]
        self.outputs: list[list[int]] = []
        self.texts: list[Content] = []
        self.drafts: list[list[int]] = []
        for seed, (lane, sampler) in enumerate(zip(self.lanes, self.samplers, strict=True)):
            tokens = np.random.default_rng(seed).integers(0, VOCABULARY, (12, 5)[seed]).astype(np.int32)
            row: Any = None
            for begin in range(0, len(tokens), 8):
                part = tokens[begin : begin + 8]
                axes = np.tile(np.arange(begin, begin + len(part), dtype=np.int32), (3, 1))
                row = program.prefill(lane, part, axes)
            token = program.first(lane, row, sampler)
            self.outputs.append([])
            self.texts.append(Content(tokens))
            self._output(seed, [token])
            program.mtp.begin(lane, self.texts[-1])

    def propose(self, counts: Sequence[int]) -> list[Any]:
        """Drafts of both lanes."""
        wishes = [Wish(*parts) for parts in zip(self.lanes, self.samplers, counts, strict=True)]
        found: list[Any] = self.program.mtp.draft(wishes)
        self.drafts += [drafts.tolist() for drafts in found]
        return found

    def verify(self, drafts: Sequence[Any]) -> None:
        """A round over the drafts; what equals the target's own draws stays."""
        blocks = [
            Block(lane, np.array([outputs[-1], *own], np.int32), sampler)
            for lane, outputs, own, sampler in zip(
                self.lanes, self.outputs, drafts, self.samplers, strict=True
            )
        ]
        drawn, kept = self.program.verify(blocks), []
        for block, row in zip(blocks, drawn, strict=True):
            count = 1
            while count < len(block.tokens) and block.tokens[count] == row[count - 1]:
                count += 1
            kept.append(count)
        self.program.commit(blocks, kept)
        first = 0
        for index, (block, count, row) in enumerate(zip(blocks, kept, drawn, strict=True)):
            self._output(index, row[:count].tolist())
            self._committed(index, first, count)
            first += len(block.tokens)

    def step(self) -> None:
        """A round without drafts."""
        parts = zip(self.lanes, self.outputs, self.samplers, strict=True)
        drawn = self.program.round([Row(lane, outputs[-1], sampler) for lane, outputs, sampler in parts])
        for index, token in enumerate(drawn):
            self._output(index, [token])
            self._committed(index, index, 1)

    def _output(self, index: int, tokens: list[int]) -> None:
        for token in tokens:
            self.samplers[index].counts[token] += 1
        self.outputs[index] += tokens
        self.texts[index].extend(tokens)

    def _committed(self, index: int, first: int, count: int) -> None:
        self.program.mtp.committed(self.lanes[index], first, self.outputs[index][-count:])

    def run(self) -> None:
        """Neural rounds of different widths, one of drafts that are partly right, one without any."""
        self.verify(self.propose((3, 2)))
        self.step()
        if self.following is None:
            self.following = self.ahead(3)
        wrong = [[tokens[0], (tokens[1] + 1) % VOCABULARY] for tokens in self.following]
        self.verify(wrong)
        self.propose((1, 2))
        for lane in self.lanes:
            self.program.mtp.settle(lane)
            self.program.mtp.forget(lane)
            self.program.close_lane(lane)
        self.program.check_integrity()

    def ahead(self, count: int) -> list[list[int]]:
        """What comes next, said by a round whose columns are all rejected but for the last known one."""
        known: list[list[int]] = [[] for _ in self.lanes]
        for _ in range(count - 1):
            blocks = [
                Block(lane, np.array([outputs[-1], *own, 0], np.int32), sampler)
                for lane, outputs, own, sampler in zip(
                    self.lanes, self.outputs, known, self.samplers, strict=True
                )
            ]
            drawn = self.program.verify(blocks)
            self.program.commit(blocks, [0, 0])
            for own, row in zip(known, drawn, strict=True):
                own.append(int(row[len(own)]))
        return known


@pytest.mark.timeout(300)
def test_drafts_are_those_of_the_cpu_program(tmp_path: Path) -> None:
    """Every draft and every token of the same script; a round's launches run as late as on a device."""
    path, config = small_artifact(tmp_path)
    options = ProgramOptions(
        lanes=2, max_context=CONTEXT, pages=2, kv_format="bf16", prefill_chunk=64, threads=1,
        vocabulary=VOCABULARY, mtp=True,
    )  # fmt: skip
    with Artifact.open(path) as artifact:
        cpu = Program(artifact, config, options)
    theirs = Script(cpu)
    theirs.run()
    cpu.close()
    mine = Script(small_program(path, CONTEXT, mtp=True), theirs.following)
    make_late(mine.program)
    mine.run()
    assert mine.outputs == theirs.outputs
    assert mine.drafts == theirs.drafts


def test_a_proposal_heads_draws_count_output_by_id_and_the_drafts_before_them() -> None:
    """Columns of the logits are names of ids: penalties go by the id, ties and draws by the column."""
    random, rows, columns, most = np.random.default_rng(4), 3, 60, 16
    logits = torch.from_numpy(random.integers(-3, 4, (rows, columns)).astype(np.float32))
    names = random.permutation(500)[:columns].astype(np.int32)
    counts = random.integers(0, 3, (rows, 500)).astype(np.int32)
    drafts = np.zeros((rows, most), np.int32)
    drafts[1:, :2] = names[[[4, 9], [9, 9]]]
    held = torch.from_numpy(counts.copy())
    numbers = torch.zeros(rows, select.NUMBERS, dtype=torch.float64)
    words = torch.full((rows, select.WORDS), -1, dtype=torch.int64)
    for row, earlier in enumerate((0, 2, 2)):
        numbers[row, :6] = torch.tensor([0.7, 0.9, 0.0, 1.5, 0.7, 5], dtype=torch.float64)
        words[row, :6] = torch.tensor([9, 40 + row, row, -1, -1, earlier])
    best, flags = torch.zeros(rows, 1, 20, dtype=torch.int64), torch.zeros(rows, 1, dtype=torch.int32)
    drawn = torch.zeros(rows, dtype=torch.int32)
    select.select(
        logits, numbers, words, held, torch.zeros(rows, 16, dtype=torch.int32), columns, best, flags, drawn,
        rows, select.Earlier(torch.from_numpy(drafts), most, 1), torch.from_numpy(names),
    )  # fmt: skip
    parameters = SamplingParameters(0.7, 0.9, 5, 0.0, 1.5, 0.7, 9)
    for row, earlier in enumerate((0, 2, 2)):
        seen = counts[row].copy()
        np.add.at(seen, drafts[row, :earlier], 1)
        wanted = select_token(logits[row].numpy(), parameters, seen[names], 40 + row, vocabulary=columns)
        assert int(drawn[row]) == wanted
    assert torch.equal(held, torch.from_numpy(counts)), "drafts are no output"
