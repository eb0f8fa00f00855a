"""Verification: blocks of columns forward without touching committed state, then the accepted part folded in.

Owns the control tables of such a round. A block's columns read the lane's state image and leave their records
in the round's buffers; nothing is committed but by ``commit``, which must follow before anything else runs.
A key or value beyond the lane's frontier is never read: trimming a block is not moving the frontier past it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ninfer.fast.memory.states import StateImages
from ninfer.fast.ops.control import ALL, AXIS_T, BLOCK_TABLE, COLUMNS, COMMIT, POSITION, TOKEN
from ninfer.fast.program.round import RoundRunner
from ninfer.fast.program.text import TextTable

if TYPE_CHECKING:
    from ninfer.fast.memory.lanes import Lane
    from ninfer.fast.program.program import Sampler

Tokens = npt.NDArray[np.int32]
SetSampler = Callable[[int, "Sampler", int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One lane's columns: ``tokens`` [n] are its pending token, then drafts; ``sampler`` draws after each."""

    lane: Lane
    tokens: Tokens
    sampler: Sampler


class Verifier:
    """Runs blocks over a model's round; ``set_sampler(row, sampler, position)`` fills one sampler."""

    def __init__(
        self, runner: RoundRunner, table: TextTable, states: StateImages, set_sampler: SetSampler
    ) -> None:
        self._runner, self._table, self._states = runner, table, states
        self._set_sampler = set_sampler

    def run(self, blocks: Sequence[Block]) -> list[Tokens]:
        """What is drawn after every column, [n] per block; below 0: no token (``check_drawn``).

        A draw counts the block's drafts before it as output: it is the target's own if all were accepted. A
        block of one column is an ordinary step: it commits here, and ``commit`` only moves its frontier.
        """
        row = 0
        for index, block in enumerate(blocks):
            self._fill(index, row, block)
            row += len(block.tokens)
        # Both halves in one call: nothing is masked between them.
        self._runner.run(self._table.forward[0], self._table.finish[1], row, len(blocks))
        self._table.pending[:row, 0] = 0
        drawn = self._table.drawn[:row].astype(np.int32)
        ends = list(itertools.accumulate(len(block.tokens) for block in blocks))
        return [drawn[end - len(block.tokens) : end] for block, end in zip(blocks, ends, strict=True)]

    def commit(self, blocks: Sequence[Block], counts: Sequence[int]) -> None:
        """Commit the first ``counts`` columns of the blocks that ``run`` has just verified, in its order."""
        control = self._runner.blocks
        folds = False
        for index, (block, count) in enumerate(zip(blocks, counts, strict=True)):
            assert 0 <= count <= len(block.tokens)
            stepped = control[index, COMMIT] == 1
            control[index, COLUMNS] = 0 if stepped else count
            control[index, COMMIT] = ALL if count == len(block.tokens) and not stepped else 0
            folds = folds or (count > 0 and not stepped)
            block.lane.frontier += count
        if folds:
            self._runner.run(*self._table.fold, 0, len(blocks))

    def _fill(self, index: int, row: int, block: Block) -> None:
        lane, count = block.lane, len(block.tokens)
        end = row + count
        assert count > 0
        assert end <= self._table.columns
        places = np.arange(lane.frontier, lane.frontier + count)
        rows, samplers = self._runner.rows, self._runner.samplers
        rows[row:end, TOKEN] = block.tokens
        rows[row:end, POSITION] = places
        rows[row:end, AXIS_T : AXIS_T + 3] = (places + lane.shift)[:, None]
        rows[row:end, BLOCK_TABLE] = lane.block_table.ctypes.data
        self._runner.blocks[index] = (row, count, self._states.address(lane.slot), int(count == 1))
        self._set_sampler(row, block.sampler, lane.frontier + 1)
        samplers[row + 1 : end] = samplers[row]
        samplers["position"][row:end] = places + 1
        parameters = block.sampler.parameters
        if parameters.presence_penalty or parameters.frequency_penalty:
            fill_pending(self._table.pending[row:end], block.tokens[1:])


def fill_pending(pending: npt.NDArray[np.int32], drafts: Tokens) -> None:
    """Say of each column [n, PENDING_WORDS] which of the n − 1 ``drafts`` stand before it."""
    count = len(pending)
    before = np.where(np.tri(count, count - 1, -1, dtype=np.bool_), drafts, np.iinfo(np.int32).max)
    before.sort(axis=1)
    pending[:, 0] = np.arange(count)
    pending[:, 1:count] = before
