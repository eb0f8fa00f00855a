"""What the prediction head of a GPU program knows of each lane: its newest pair, and pairs to be taken in.

Owns the alignment, as ``ninfer.fast.program.mtp_lanes`` does on CPUs: after the text model has taken in the
tokens below the frontier F, every pair up to place F − 1 is known. Residual rows never leave the device: a
lane's last one lies in its state image, those of the last round where Forward left them, so pairs go in
before the next Forward.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ninfer.fast.memory.lanes import pages_for
from ninfer.fast.ops.control import MAX_COLUMNS
from ninfer.fast.ops.gpu_control import AXIS_T, BLOCK, LANE, POSITION, ROW_WORDS, TOKEN
from ninfer.fast.program.gpu.control import Control
from ninfer.fast.program.gpu.device import Waiter
from ninfer.fast.program.gpu.graphs import Graphs
from ninfer.fast.program.gpu.memory import GpuPages, GpuStates
from ninfer.fast.program.gpu.mtp import Drafts, Pairs
from ninfer.fast.program.gpu.samplers import Samplers
from ninfer.fast.program.gpu.shapes import WIDTHS, bucket
from ninfer.fast.program.gpu.staging import Staged

if TYPE_CHECKING:
    from ninfer.fast.memory.lanes import Lane
    from ninfer.fast.program.mtp_lanes import Wish

Tokens = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]
Run = Callable[[Hashable, Callable[[], None]], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Taken:
    """Pairs that are to be taken in: their lane, its slot, and control records [n, ROW_WORDS]."""

    lane: Lane
    slot: int
    records: Tokens


class GpuMtpLanes:
    """The head for the lanes of one program; ``main`` has the block tables.

    ``pairs`` runs over ``pair_control``'s rows, ``drafts`` over ``control``'s. ``hidden`` [rows, H] are the
    residual rows of the last Forward; ``chunk`` tokens are in a prompt's chunk.
    """

    def __init__(
        self,
        pairs: Pairs,
        drafts: Drafts,
        graphs: Graphs,
        main: Control,
        pair_control: Control,
        control: Control,
        samplers: Samplers,
        states: GpuStates,
        waiter: Waiter,
        hidden: Tensor,
        chunk: int,
    ) -> None:
        self._pairs, self._drafts, self._graphs, self._waiter = pairs, drafts, graphs, waiter
        self._main, self._pair_control, self._control = main, pair_control, control
        self._samplers = samplers
        self._states, self._hidden = states, hidden
        self._staged = Staged(pair_control.rows)
        self._chunk = Staged(
            torch.zeros((chunk + MAX_COLUMNS, ROW_WORDS), dtype=torch.int32, device=hidden.device)
        )
        cuda = hidden.device.type == "cuda"
        self._drawn = torch.zeros(drafts.drafts.shape, dtype=torch.int32, pin_memory=cuda)
        self._newest: dict[int, int] = {}
        self._taken: list[_Taken] = []

    @property
    def bytes(self) -> int:
        """Memory beside the round's."""
        return self._pairs.bytes + self._pair_control.own_bytes + self._control.own_bytes

    def set_pages(self, pages: GpuPages) -> None:
        """The pools, which are sized last."""
        self._pairs.set_pages(pages)
        self._drafts.set_pages(pages)

    # --- what is known -----------------------------------------------------------------------------

    def prefilled(self, lane: Lane, start: int, tokens: Tokens, axes: Tokens, rows: Tensor) -> None:
        """The text model took a chunk from place ``start``: its residual ``rows`` [T, H].

        The chunk's own pairs go in at once, and the one that ended the chunk before it; the last row stays in
        the lane's state image.
        """
        count, image = len(tokens), self._states.images[lane.slot, self._states.hidden_at :]
        table = self._main.prompts
        records = self._chunk.fill()
        own, most = np.arange(count - 1), MAX_COLUMNS
        pairs = [_records(tokens[1:], start + own, axes[:, :-1].T, table, own)]
        if start:
            before = np.array([-1 - lane.slot])
            pairs.insert(0, _records(tokens[:1], before * 0 + start - 1, axes[:, :1].T - 1, table, before))
        known = np.concatenate(pairs)
        records[: len(known)] = known
        records[len(known) : len(known) + most] = self._padding()
        self._chunk.upload(len(known) + most)
        for at in range(0, len(known), most):
            width = bucket(min(len(known) - at, most))
            self._pair_control.rows[:width].copy_(self._chunk.target[at : at + width])
            self._take(rows, width, self._graphs.run)
        image.copy_(rows[count - 1])

    def begin(self, lane: Lane, token: int) -> None:
        """The prompt is in and its first output token is drawn."""
        self._note(lane, lane.frontier - 1, np.array([token], np.int32), np.array([-1 - lane.slot]))

    def committed(self, lane: Lane, rows: Tensor, outputs: Sequence[int]) -> None:
        """Columns were committed: their ``rows`` [n, H] of the last Forward and the tokens after them."""
        first, count = rows.storage_offset() // rows.stride(0), len(outputs)
        self._note(lane, lane.frontier - count, np.array(outputs, np.int32), np.arange(first, first + count))

    def settle(self, lane: Lane) -> None:
        """Let the lane's pages hold everything that is known."""
        self.flush()

    def forget(self, lane: Lane) -> None:
        """The lane is about to be closed."""
        self._newest.pop(lane.slot, None)
        self._taken = [one for one in self._taken if one.slot != lane.slot]

    def flush(self) -> None:
        """Take in all that is known: the next Forward overwrites the rows that it comes from."""
        if not self._taken:
            return
        for one in self._taken:
            # Only now: a table may have changed hands since.
            one.records[:, LANE] = table = self._main.table_of(one.lane)
            self._main.set_table(table, one.lane.block_table, pages_for(one.lane.frontier))
        records, self._taken = np.concatenate([one.records for one in self._taken]), []
        most = MAX_COLUMNS
        for begin in range(0, len(records), most):
            part = records[begin : begin + most]
            width = bucket(len(part))
            filled = self._staged.fill()
            filled[: len(part)] = part
            filled[len(part) : width] = self._padding()
            self._staged.upload(width)
            self._take(self._hidden, width, self._graphs.run)

    # --- drafts ------------------------------------------------------------------------------------

    def draft(self, wishes: Sequence[Wish]) -> list[Tokens]:
        """Drafts per wish, as many as asked for unless the head's logits are no numbers.

        Every row runs as many steps as the longest wish: what is drawn beyond a wish goes to the scratch page
        and is not looked at.
        """
        self.flush()
        asked = [index for index, wish in enumerate(wishes) if wish.count > 0]
        found = [np.zeros(0, np.int32) for _ in wishes]
        if not asked:
            return found
        steps = max(wishes[index].count for index in asked)
        for row, index in enumerate(asked):
            self._fill(row, wishes[index], steps)
        self._control.upload()
        count = len(asked)
        self._graphs.run(("draft", count), partial(self._drafts.first, count))
        for _ in range(steps - 1):
            self._graphs.run(("again", count), partial(self._drafts.again, count))
        self._drawn[:count].copy_(self._drafts.drafts[:count], non_blocking=True)
        self._waiter.wait()
        for row, index in enumerate(asked):
            drafts = self._drawn[row, : wishes[index].count].numpy().copy()
            wrong = np.flatnonzero(drafts < 0)
            found[index] = drafts[: wrong[0]] if len(wrong) else drafts
        return found

    def rehearse(self, lanes: int, capture: bool) -> None:
        """Run every shape over padding, or capture it."""
        control, run = self._control, (self._graphs.run if capture else _launch)
        for width in WIDTHS:
            self._staged.fill()[:] = self._padding()
            self._staged.upload(width)
            self._take(self._hidden, width, run)
        control.host_rows[:] = self._padding()
        control.host_numbers[:] = 0
        control.host_words[:] = (0, 0, -1, -1, -1, 0, 0, 0)
        for count in range(1, lanes + 1):
            for index in range(count):
                control.host_blocks[index] = (index, 1, 0, 0, 0, control.padding, 0, 0)
            control.upload()
            run(("draft", count), partial(self._drafts.first, count))
            run(("again", count), partial(self._drafts.again, count))
            self._waiter.wait()

    def _fill(self, row: int, wish: Wish, steps: int) -> None:
        lane, sampler, control = wish.lane, wish.sampler, self._control
        place, pending = lane.frontier - 1, self._newest[lane.slot]
        table = self._main.table_of(lane)
        self._main.set_table(table, lane.block_table, pages_for(place + steps), len(lane.pages))
        axis = place + lane.shift
        control.host_rows[row] = (pending, place, axis, axis, axis, table, -1 - lane.slot, place)
        control.host_blocks[row] = (row, 1, lane.slot, 0, place, table, 0, 0)
        self._samplers.draft(control, row, table, sampler, place + 2, pending)

    def _note(self, lane: Lane, start: int, tokens: Tokens, sources: Places) -> None:
        self._newest[lane.slot] = int(tokens[-1])
        places = np.arange(start, start + len(tokens))
        axes = np.repeat((places + lane.shift)[:, None], 3, 1)
        self._taken.append(_Taken(lane, lane.slot, _records(tokens, places, axes, 0, sources)))

    def _take(self, hidden: Tensor, width: int, run: Run) -> None:
        """The pairs of the first ``width`` control records, whose rows are of ``hidden`` or of images."""
        self._pairs.gather(hidden, width)
        run(("take", width), partial(self._pairs.take, width))

    def _padding(self) -> Tokens:
        record = np.zeros(ROW_WORDS, np.int32)
        record[LANE] = self._control.padding
        return record


def _records(
    tokens: Tokens, places: Places, axes: npt.NDArray[np.integer[Any]], table: int, sources: Places
) -> Tokens:
    """Control records of pairs: ``tokens``, ``places`` and ``sources`` [n], ``axes`` [n, 3]."""
    records = np.zeros((len(tokens), ROW_WORDS), np.int32)
    records[:, TOKEN], records[:, POSITION], records[:, LANE] = tokens, places, table
    records[:, AXIS_T : AXIS_T + 3] = axes
    records[:, BLOCK] = sources
    return records


def _launch(key: Hashable, launch: Callable[[], None]) -> None:
    launch()
