"""What changes from round to round: filled on the host, brought over by a round's first launch.

Rows, blocks and samplers lie in one pinned buffer whose twin on the device is what kernels read. Changes of
block tables and penalty counts, which live on the device, go with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ninfer.fast.ops.carry.gpu import MARK_KINDS, MARKS, arrive
from ninfer.fast.ops.gpu_control import BLOCK_WORDS, ROW_WORDS
from ninfer.fast.ops.select.gpu import NUMBERS, WORDS
from ninfer.fast.program.gpu.device import Waiter
from ninfer.fast.program.gpu.staging import Crossing, Staged, pinned
from ninfer.fast.program.gpu.tables import Tables

if TYPE_CHECKING:
    from ninfer.fast.memory.lanes import Lane

Table = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ControlSizes:
    """Rows of a round, lanes with a block table each, pages of a table, ids."""

    rows: int
    lanes: int
    pages: int
    vocabulary: int


class Control:
    """``rows``, ``blocks``, ``numbers`` and ``words`` on the device; ``host_*`` are the arrays to fill.

    A round asks for ``begin``, fills, and says ``send`` just before the launch that has ``arrive`` in it.
    """

    def __init__(
        self, sizes: ControlSizes, device: torch.device, waiter: Waiter, main: Control | None = None
    ) -> None:
        """With ``main``: records of their own beside its tables, counts and masks."""
        self._parts = (
            ("numbers", NUMBERS, torch.float64),
            ("words", WORDS, torch.int64),
            ("rows", ROW_WORDS, torch.int32),
            ("blocks", BLOCK_WORDS, torch.int32),
        )
        total = sum(sizes.rows * count * kind.itemsize for _, count, kind in self._parts)
        self._host = pinned((total,), torch.uint8, device)
        self._device = torch.zeros(total, dtype=torch.uint8, device=device)
        self.numbers, self.words, self.rows, self.blocks = self._views(self._device, sizes.rows)
        host = self._views(self._host, sizes.rows)
        self.host_numbers, self.host_words, self.host_rows, self.host_blocks = (part.numpy() for part in host)
        self._marks = pinned((MARK_KINDS, MARKS), torch.int32, device)
        self._marks.fill_(-1)
        self._host_marks = self._marks.numpy()
        self._marked = False
        self._crossing = Crossing(waiter)
        # A fold's blocks: those of its Forward, but for the columns that are kept.
        self.folded = Staged(self.blocks, waiter)
        if main is None:
            self._tables = Tables(sizes.lanes, sizes.pages, sizes.vocabulary, device)
            bits = -(-sizes.vocabulary // 32)
            self.masks = torch.zeros((sizes.rows, bits), dtype=torch.int32, device=device)
        else:
            self._tables, self.masks = main._tables, main.masks
        self.tables, self.counts = self._tables.tables, self._tables.counts
        self.prompts, self.padding = self._tables.prompts, self._tables.padding

    def _views(self, memory: Tensor, rows: int) -> list[Tensor]:
        views, at = [], 0
        for _, count, kind in self._parts:
            size = rows * count * kind.itemsize
            views.append(memory[at : at + size].view(kind).view(rows, count))
            at += size
        return views

    # --- a round -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """From here on the arrays may be filled: what was sent last has arrived."""
        self._crossing.ready()

    def send(self) -> None:
        """The arrays are filled, and ``arrive`` is launched next."""
        if self._marked:
            self._host_marks.fill(-1)
        self._marked = self._tables.mark(self._host_marks)
        self._crossing.sent()

    def arrive(self) -> None:
        """Launch what brings all that was sent to the device, alone or as part of a graph."""
        words = torch.int32
        arrive(self._host.view(words), self._device.view(words), self._marks, self.tables, self.counts)

    # --- tables and counts ---------------------------------------------------------------------------

    def set_scratch(self, page: int) -> None:
        """The page that takes what nobody reads: every entry of every table until it is set."""
        self._tables.set_scratch(page)

    def table_of(self, lane: Lane) -> int:
        """The table of a lane; that of the least recently used one where the lane has none yet."""
        return self._tables.table_of(lane)

    def release(self, lane: Lane) -> None:
        """The lane is closed."""
        self._tables.release(lane)

    def set_table(self, index: int, table: Table, pages: int, held: int) -> None:
        """A block table of ``held`` pages, of which the next round looks at the first ``pages`` entries.

        Those behind the held ones are the scratch page.
        """
        self._tables.set_table(index, table, pages, held)

    def tell_tables(self) -> None:
        """Let the device know the block tables now, for a launch without ``arrive``."""
        self._tables.tell()

    def set_counts(self, index: int, counts: Table) -> None:
        """The penalty counts beside a block table."""
        self._tables.set_counts(index, counts)

    def count(self, index: int, tokens: Iterable[int]) -> None:
        """Let the counts beside a block table hold one more of each of ``tokens`` in the next round."""
        self._tables.count(index, tokens)

    @property
    def own_bytes(self) -> int:
        """Memory of the records alone."""
        return self._device.numel()

    @property
    def bytes(self) -> int:
        return self.own_bytes + self._tables.bytes + 4 * self.masks.numel()
