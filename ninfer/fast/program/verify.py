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
from ninfer.fast.ops.control import ALL, COLUMNS, COMMIT, MAX_COLUMNS
from ninfer.fast.program.round import RoundRunner
from ninfer.fast.program.text import TextTable
from ninfer.fast.program.text_rows import fill_text_rows

if TYPE_CHECKING:
    from ninfer.fast.memory.lanes import Lane
    from ninfer.fast.program.program import Sampler

Tokens = npt.NDArray[np.int32]
SetSampler = Callable[[int, "Sampler", int], None]

_COUNTED = np.arange(MAX_COLUMNS)
# The drafts that stand before each column.
_EARLIER = np.tri(MAX_COLUMNS, MAX_COLUMNS - 1, -1, dtype=np.bool_)


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
        # Copying a sampler word by word costs less than field by field.
        self._samplers = runner.samplers.view(np.int64).reshape(len(runner.samplers), -1)
        self._positions = runner.samplers["position"]

    def run(self, blocks: Sequence[Block]) -> list[Tokens]:
        """What is drawn after every column, [n] per block; below 0: no token (``check_drawn``).

        A draw counts the block's drafts before it as output: it is the target's own if all were accepted. A
        block of one column is an ordinary step: it commits here, and ``commit`` only moves its frontier.
        """
        borders = [0]
        for index, block in enumerate(blocks):
            self._fill(index, borders[-1], block)
            borders.append(borders[-1] + len(block.tokens))
        rows = borders[-1]
        self._runner.run(*self._table.verify, rows, len(blocks))
        self._table.pending[:rows, 0] = 0
        drawn = self._table.drawn[:rows].astype(np.int32)
        return [drawn[begin:end] for begin, end in itertools.pairwise(borders)]

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
        fill_text_rows(self._runner.rows[row:end], lane, lane.frontier, block.tokens)
        self._runner.blocks[index] = (row, count, self._states.address(lane.slot), int(count == 1))
        self._set_sampler(row, block.sampler, lane.frontier + 1)
        self._samplers[row + 1 : end] = self._samplers[row]
        self._positions[row:end] += _COUNTED[:count]
        parameters = block.sampler.parameters
        if count > 1 and (parameters.presence_penalty or parameters.frequency_penalty):
            fill_pending(self._table.pending[row:end], block.tokens[1:])


def fill_pending(pending: npt.NDArray[np.int32], drafts: Tokens) -> None:
    """Say of each column [n, PENDING_WORDS] which of the n − 1 ``drafts`` stand before it."""
    count = len(pending)
    before = np.where(_EARLIER[:count, : count - 1], drafts, np.iinfo(np.int32).max)
    before.sort(axis=1)
    pending[:, 0] = _COUNTED[:count]
    pending[:, 1:count] = before
