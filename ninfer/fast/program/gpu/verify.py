"""Verification on a device: blocks of columns forward without touching committed state, then the fold.

Owns the control tables of such a round, as ``ninfer.fast.program.verify`` does on CPUs. Columns that the
captured shape has beyond the blocks' are padding: they write to the scratch page and nobody reads them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ninfer.fast.memory.lanes import pages_for
from ninfer.fast.ops.control import MAX_COLUMNS
from ninfer.fast.ops.gpu_control import COLUMNS, COMMIT
from ninfer.fast.program.gpu.control import Control
from ninfer.fast.program.gpu.forward import Forward
from ninfer.fast.program.gpu.graphs import Graphs
from ninfer.fast.program.gpu.records import columns
from ninfer.fast.program.gpu.samplers import Samplers
from ninfer.fast.program.gpu.shapes import Families, Shape

if TYPE_CHECKING:
    from ninfer.fast.program.verify import Block

Tokens = npt.NDArray[np.int32]


class Verifier:
    """Runs blocks over ``forward``; ``finish(rows, launched)`` draws some of the launched rows and waits."""

    def __init__(
        self,
        forward: Forward,
        graphs: Graphs,
        control: Control,
        samplers: Samplers,
        families: Families,
        finish: Callable[[int, int], Tokens],
    ) -> None:
        self._forward, self._graphs, self._control = forward, graphs, control
        self._samplers, self._families, self._finish = samplers, families, finish

    def run(self, blocks: Sequence[Block]) -> list[Tokens]:
        """What is drawn after every column, [n] per block; below 0: no token (``check_drawn``).

        A block of one column is an ordinary step: it commits here, and ``commit`` only moves its frontier.
        """
        row = 0
        self._control.begin()
        for index, block in enumerate(blocks):
            self._fill(index, row, block)
            row += len(block.tokens)
        assert row <= MAX_COLUMNS
        widest = max(len(block.tokens) for block in blocks)
        shape = self._families.choose(row, len(blocks), widest)
        if shape is not None:
            self._pad(row, shape.rows)
        self._control.send()
        if shape is not None:
            self._graphs.run(("forward", shape), partial(self._forward.forward, shape))
        else:  # none was captured
            self._forward.forward(Shape(row, len(blocks), widest))
        drawn = self._finish(row, row if shape is None else shape.rows)
        ends = list(itertools.accumulate(len(block.tokens) for block in blocks))
        return [drawn[end - len(block.tokens) : end] for block, end in zip(blocks, ends, strict=True)]

    def commit(self, blocks: Sequence[Block], counts: Sequence[int]) -> None:
        """Commit the first ``counts`` columns of the blocks that ``run`` has just verified, in its order."""
        folded, known = self._control.folded, self._control.host_blocks
        records = folded.fill()
        records[: len(blocks)] = known[: len(blocks)]
        folds = False
        for index, (block, count) in enumerate(zip(blocks, counts, strict=True)):
            assert 0 <= count <= len(block.tokens)
            stepped = known[index, COMMIT] == 1
            records[index, COLUMNS] = 0 if stepped else count
            records[index, COMMIT] = 1
            folds = folds or (count > 0 and not stepped)
            table = self._control.table_of(block.lane)
            self._samplers.committed(table, block.sampler, block.tokens, count)
            block.lane.frontier += count
        if folds:
            folded.sent()
            fold = partial(self._forward.fold, len(blocks))
            if len(blocks) <= self._families.lanes:
                self._graphs.run(("fold", len(blocks)), fold)
            else:
                fold()

    def _fill(self, index: int, row: int, block: Block) -> None:
        lane, count, control = block.lane, len(block.tokens), self._control
        start = lane.frontier
        assert count > 0
        table = control.table_of(lane)
        control.host_rows[row : row + count] = columns(block.tokens, start, lane.shift, table, index)
        control.host_blocks[index] = (row, count, lane.slot, int(count == 1), start, table, 0, 0)
        control.set_table(table, lane.block_table, pages_for(start + count), len(lane.pages))
        if count == 1:
            self._samplers.step(row, table, block.sampler, start + 1, int(block.tokens[0]))
        else:
            self._samplers.block(row, table, block.sampler, start + 1, block.tokens)

    def _pad(self, row: int, end: int) -> None:
        control = self._control
        control.host_rows[row:end] = 0
        control.host_rows[row:end, 5] = control.padding
        self._samplers.idle(row, end)
