"""What changes from round to round: filled on the host, carried over in one copy.

Rows, blocks and samplers lie in one pinned buffer whose twin on the device is what kernels read. Block tables
change with lanes only and are carried over when they do; penalty counts live on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ninfer.fast.ops.gpu_control import BLOCK_WORDS, ROW_WORDS
from ninfer.fast.ops.select.gpu import NUMBERS, WORDS


@dataclass(frozen=True, slots=True)
class ControlSizes:
    """Rows of a round, lanes, pages of a lane, ids with a count (0: penalties are never asked for)."""

    rows: int
    lanes: int
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
        self.tables = torch.zeros((sizes.lanes, sizes.pages), dtype=torch.int32, device=device)
        self.counts = torch.zeros((sizes.lanes, sizes.vocabulary), dtype=torch.int32, device=device)
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

    def set_table(self, lane: int, pages: list[int]) -> None:
        """The pages of a lane."""
        if pages:
            self.tables[lane, : len(pages)].copy_(torch.tensor(pages, dtype=torch.int32))

    def set_counts(self, lane: int, counts: np.ndarray) -> None:
        """The penalty counts of a lane."""
        self.counts[lane, : len(counts)].copy_(torch.from_numpy(counts))

    @property
    def bytes(self) -> int:
        tensors = (self._device, self.tables, self.counts, self.masks)
        return sum(t.numel() * t.element_size() for t in tensors)
