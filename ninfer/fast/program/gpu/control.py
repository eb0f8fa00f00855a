"""What changes from round to round: filled on the host, carried over in one copy.

Rows, blocks and samplers lie in one pinned buffer whose twin on the device is what kernels read. Block tables
are carried over only where they differ from what the device has; penalty counts live on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ninfer.fast.ops.gpu_control import BLOCK_WORDS, ROW_WORDS
from ninfer.fast.ops.select.gpu import NUMBERS, WORDS

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

    Behind the lanes' tables lie that of ``prompts`` and that of ``padding``: the scratch page alone.
    """

    def __init__(self, sizes: ControlSizes, device: torch.device, main: Control | None = None) -> None:
        """With ``main``: records of their own beside its tables, counts and masks."""
        self._parts = (
            ("numbers", NUMBERS, torch.float64),
            ("words", WORDS, torch.int64),
            ("rows", ROW_WORDS, torch.int32),
            ("blocks", BLOCK_WORDS, torch.int32),
        )
        total = sum(sizes.rows * count * kind.itemsize for _, count, kind in self._parts)
        self._host = torch.zeros(total, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = torch.zeros(total, dtype=torch.uint8, device=device)
        self.numbers, self.words, self.rows, self.blocks = self._views(self._device, sizes.rows)
        host = self._views(self._host, sizes.rows)
        self.host_numbers, self.host_words, self.host_rows, self.host_blocks = (part.numpy() for part in host)
        self.prompts, self.padding = sizes.lanes, sizes.lanes + 1
        if main is not None:
            self.tables: Tensor = main.tables
            self.counts: Tensor = main.counts
            self.masks: Tensor = main.masks
            return
        self.tables = torch.zeros((sizes.lanes + 2, sizes.pages), dtype=torch.int32, device=device)
        self._tables = np.zeros((sizes.lanes + 2, sizes.pages), np.int32)
        self._scratch = 0
        # The least recently used lane first.
        self._table_of: dict[int, int] = {}
        self.counts = torch.zeros((sizes.lanes + 1, sizes.vocabulary), dtype=torch.int32, device=device)
        self.masks = torch.zeros((sizes.rows, -(-sizes.vocabulary // 32)), dtype=torch.int32, device=device)

    def _views(self, memory: Tensor, rows: int) -> list[Tensor]:
        views, at = [], 0
        for _, count, kind in self._parts:
            size = rows * count * kind.itemsize
            views.append(memory[at : at + size].view(kind).view(rows, count))
            at += size
        return views

    def upload(self) -> None:
        """Carry the filled arrays over, in the order of the stream."""
        self._device.copy_(self._host, non_blocking=True)

    def set_scratch(self, page: int) -> None:
        """The page that takes what nobody reads: every entry of every table until it is set."""
        self._scratch = page
        self._tables[:] = page
        self.tables.fill_(page)

    def table_of(self, lane: Lane) -> int:
        """The table of a lane; that of the least recently used one where the lane has none yet."""
        table = self._table_of.pop(lane.slot, -1)
        if table < 0:
            used = set(self._table_of.values())
            free = (index for index in range(self.prompts) if index not in used)
            table = next(free, -1)
            if table < 0:
                table = self._table_of.pop(next(iter(self._table_of)))
        self._table_of[lane.slot] = table
        return table

    def release(self, lane: Lane) -> None:
        """The lane is closed."""
        self._table_of.pop(lane.slot, None)

    def set_table(self, index: int, table: Table, pages: int, held: int | None = None) -> None:
        """The first ``pages`` entries of a block table; those behind ``held`` are the scratch page."""
        known = self._tables[index, :pages]
        wanted = table[: pages if held is None else held][:pages]
        if len(wanted) < pages:
            wanted = np.append(wanted, np.full(pages - len(wanted), self._scratch, np.int32))
        if not np.array_equal(known, wanted):
            known[:] = wanted
            self.tables[index, :pages].copy_(torch.from_numpy(known.copy()), non_blocking=True)

    def set_counts(self, index: int, counts: Table) -> None:
        """The penalty counts beside a block table."""
        self.counts[index, : len(counts)].copy_(torch.from_numpy(counts))

    @property
    def own_bytes(self) -> int:
        """Memory of the records alone."""
        return self._device.numel()

    @property
    def bytes(self) -> int:
        tensors = (self.tables, self.counts, self.masks)
        return self.own_bytes + sum(t.numel() * t.element_size() for t in tensors)
