"""Block tables and penalty counts of a device's lanes, which change little from round to round.

Owns which lane has which table, what the device knows of each, and the changes that wait to be told. A round
takes them along with its records; what must be known at once, or is too much for that, is copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from ninfer.fast.ops.carry.gpu import COUNT_PLACE, MARKS, TABLE_PAGE, TABLE_PLACE

if TYPE_CHECKING:
    from ninfer.fast.memory.lanes import Lane

Table = npt.NDArray[np.int32]


class Tables:
    """``tables`` [lanes + 2, pages] and ``counts`` [lanes + 1, ids] int32 on the device.

    Behind the lanes' tables lie that of ``prompts`` and that of ``padding``: the scratch page alone.
    """

    def __init__(self, lanes: int, pages: int, vocabulary: int, device: torch.device) -> None:
        self.prompts, self.padding = lanes, lanes + 1
        self.tables = torch.zeros((lanes + 2, pages), dtype=torch.int32, device=device)
        self.counts = torch.zeros((lanes + 1, vocabulary), dtype=torch.int32, device=device)
        self._known = np.zeros((lanes + 2, pages), np.int32)
        self._flat = self._known.reshape(-1)
        self._scratch = 0
        # The least recently used lane first.
        self._table_of: dict[int, int] = {}
        # Of each table the first and the last but one entry that the device has yet to be told.
        self._changed: dict[int, tuple[int, int]] = {}
        self._counted: list[int] = []

    @property
    def bytes(self) -> int:
        """Memory on the device."""
        return 4 * (self.tables.numel() + self.counts.numel())

    # --- block tables --------------------------------------------------------------------------------

    def set_scratch(self, page: int) -> None:
        """The page that takes what nobody reads: every entry of every table until it is set."""
        self._scratch = page
        self._known[:] = page
        self._changed.clear()
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

    def set_table(self, index: int, table: Table, pages: int, held: int) -> None:
        """A block table of ``held`` pages, whose first ``pages`` entries the next launch looks at.

        Entries behind the held ones are the scratch page. Where the device knows what is looked at, it is
        told nothing; otherwise of all held pages at once, so that a lane's table changes when it gets pages.
        """
        known = self._known[index]
        least = min(pages, held)
        same = (known[:least] == table[:least]).all()
        if same and (least == pages or (known[least:pages] == self._scratch).all()):
            return
        held = min(held, len(known))
        end = max(pages, held)
        wanted = np.full(end, self._scratch, np.int32)
        wanted[:held] = table[:held]
        (places,) = np.nonzero(known[:end] != wanted)
        begin, last = int(places[0]), int(places[-1]) + 1
        known[begin:last] = wanted[begin:last]
        if index in self._changed:
            other = self._changed[index]
            begin, last = min(begin, other[0]), max(last, other[1])
        self._changed[index] = (begin, last)

    # --- counts --------------------------------------------------------------------------------------

    def set_counts(self, index: int, counts: Table) -> None:
        """The penalty counts beside a block table."""
        begin = index * self.counts.shape[1]
        end = begin + self.counts.shape[1]
        self._counted = [place for place in self._counted if not begin <= place < end]
        self.counts[index, : len(counts)].copy_(torch.from_numpy(counts))

    def count(self, index: int, tokens: Iterable[int]) -> None:
        """Let the counts beside a block table hold one more of each of ``tokens``."""
        begin = index * self.counts.shape[1]
        self._counted += [begin + token for token in tokens]

    # --- telling -------------------------------------------------------------------------------------

    def mark(self, marks: npt.NDArray[np.int32]) -> bool:
        """Write what waits to be told to ``marks`` [MARK_KINDS, MARKS], which is −1; whether there is any."""
        changed = sum(end - begin for begin, end in self._changed.values())
        if changed > MARKS:
            self.tell()
        if len(self._counted) > MARKS:
            places, self._counted = np.array(self._counted[MARKS:]), self._counted[:MARKS]
            ones = torch.ones(len(places), dtype=torch.int32, device=self.counts.device)
            self.counts.view(-1).index_add_(0, torch.from_numpy(places).to(self.counts.device), ones)
        if not self._changed and not self._counted:
            return False
        at, width = 0, self._known.shape[1]
        for index, (begin, end) in self._changed.items():
            until = at + end - begin
            marks[TABLE_PLACE, at:until] = np.arange(index * width + begin, index * width + end)
            marks[TABLE_PAGE, at:until] = self._known[index, begin:end]
            at = until
        marks[COUNT_PLACE, : len(self._counted)] = self._counted
        self._changed.clear()
        self._counted.clear()
        return True

    def tell(self) -> None:
        """Copy the changed entries of block tables now, in the order of the stream."""
        for index, (begin, end) in self._changed.items():
            known = torch.from_numpy(self._known[index, begin:end].copy())
            self.tables[index, begin:end].copy_(known)
        self._changed.clear()
