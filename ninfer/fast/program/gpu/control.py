"""What changes from round to round: filled on the host, carried over in one copy.

Rows, blocks and samplers lie in one pinned buffer whose twin on the device is what kernels read. Block tables
are carried over only where they differ from what the device has; penalty counts live on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ninfer.fast.ops.gpu_control import BLOCK_WORDS, ROW_WORDS
from ninfer.fast.ops.select.gpu import NUMBERS, WORDS

Table = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ControlSizes:
    """Rows of a round, block tables (one a block of a round, and one for prefill), pages of a table, ids."""

    rows: int
    tables: int
    pages: int
    vocabulary: int


class Control:
    """``rows``, ``blocks``, ``numbers`` and ``words`` on the device; ``host_*`` are the arrays to fill."""

    def __init__(self, sizes: ControlSizes, device: torch.device) -> None:
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
        self.tables = torch.zeros((sizes.tables, sizes.pages), dtype=torch.int32, device=device)
        self._tables = np.zeros((sizes.tables, sizes.pages), np.int32)
        self.counts = torch.zeros((sizes.tables, sizes.vocabulary), dtype=torch.int32, device=device)
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

    def set_table(self, index: int, table: Table, pages: int) -> None:
        """The first ``pages`` entries of a block table."""
        known = self._tables[index, :pages]
        if not np.array_equal(known, table[:pages]):
            known[:] = table[:pages]
            self.tables[index, :pages].copy_(torch.from_numpy(known.copy()), non_blocking=True)

    def set_counts(self, index: int, counts: Table) -> None:
        """The penalty counts beside a block table."""
        self.counts[index, : len(counts)].copy_(torch.from_numpy(counts))

    @property
    def bytes(self) -> int:
        tensors = (self._device, self.tables, self.counts, self.masks)
        return sum(t.numel() * t.element_size() for t in tensors)
