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

from ninfer.fast.memory.lanes import pages_for
from ninfer.fast.ops.control import MAX_COLUMNS
from ninfer.fast.ops.gpu_control import AXIS_T, BLOCK, LANE, POSITION, ROW_WORDS, TOKEN
from ninfer.fast.program.gpu.control import Control
from ninfer.fast.program.gpu.device import Waiter
from ninfer.fast.program.gpu.graphs import Graphs
from ninfer.fast.program.gpu.memory import GpuPages, GpuStates
from ninfer.fast.program.gpu.mtp import Drafts, Pairs
from ninfer.fast.program.gpu.records import following
from ninfer.fast.program.gpu.samplers import NOBODY, Samplers
from ninfer.fast.program.gpu.shapes import WIDTHS, bucket

if TYPE_CHECKING:
    from ninfer.fast.memory.lanes import Lane
    from ninfer.fast.program.mtp_lanes import Text, Wish

Tokens = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Taken:
    """Pairs that are to be taken in: their lane, its slot, and control records [n, ROW_WORDS]."""

    lane: Lane
    slot: int
    records: Tokens


class GpuMtpLanes:
    """The head for the lanes of one program; ``main`` has the block tables.

    ``pairs`` runs over ``pair_control``'s rows, ``drafts`` over ``control``'s.
    """

    untold = 0

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
    ) -> None:
        self._pairs, self._drafts, self._graphs, self._waiter = pairs, drafts, graphs, waiter
        self._main, self._pair_control, self._control = main, pair_control, control
        self._samplers, self._states = samplers, states
        self._padding = np.zeros(ROW_WORDS, np.int32)
        self._padding[LANE] = control.padding
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

    def prefilled(self, lane: Lane, start: int, tokens: Tokens, axes: Tokens) -> None:
        """The text model took a chunk from place ``start``: its residual rows lie where prefill left them.

        The chunk's own pairs go in at once, and the one that ended the chunk before it; the last row stays in
        the lane's state image.
        """
        count, image = len(tokens), self._states.images[lane.slot, self._states.hidden_at :]
        table, rows = self._main.prompts, self._pairs.chunk
        own = np.arange(count - 1)
        pairs = [_records(tokens[1:], start + own, axes[:, :-1].T, table, len(self._pairs.hidden) + own)]
        if start:
            before = np.array([-1 - lane.slot])
            pairs.insert(0, _records(tokens[:1], before * 0 + start - 1, axes[:, :1].T - 1, table, before))
        self._take(np.concatenate(pairs))
        image.copy_(rows[count - 1])

    def begin(self, lane: Lane, text: Text) -> None:
        """The prompt is in and its first output token is drawn: it ends ``text``."""
        place = lane.frontier
        self._note(lane, place - 1, text.tokens(place, place + 1).tolist(), -1 - lane.slot)

    def committed(self, lane: Lane, first: int, outputs: Sequence[int]) -> None:
        """Columns were committed: rows from ``first`` of the last Forward and the tokens after them."""
        self._note(lane, lane.frontier - len(outputs), outputs, first)

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
            lane = one.lane
            self._main.set_table(table, lane.block_table, pages_for(lane.frontier), len(lane.pages))
        self._main.tell_tables()
        taken, self._taken = [one.records for one in self._taken], []
        self._take(taken[0] if len(taken) == 1 else np.concatenate(taken))

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
        self._control.begin()
        for row, index in enumerate(asked):
            self._fill(row, wishes[index], steps)
        self._control.send()
        count = len(asked)
        self._graphs.run(("draft", count), partial(self._drafts.first, count))
        for _ in range(steps - 1):
            self._graphs.run(("again", count), partial(self._drafts.again, count))
        self._waiter.wait()
        for row, index in enumerate(asked):
            drafts = self._drafts.told.array[row, : wishes[index].count].copy()
            wrong = np.flatnonzero(drafts < 0)
            found[index] = drafts[: wrong[0]] if len(wrong) else drafts
        return found

    def rehearse(self, lanes: int, capture: bool) -> None:
        """Run every shape over padding, or capture it."""
        control, run = self._control, (self._graphs.run if capture else _launch)
        for width in WIDTHS:
            self._pairs.ring.next(width)[:] = self._padding
            run(("take", width), partial(self._pairs.take, width))
        for count in range(1, lanes + 1):
            control.begin()
            control.host_rows[:] = self._padding
            control.host_numbers[:] = 0
            control.host_words[:] = NOBODY
            for index in range(count):
                control.host_blocks[index] = (index, 1, 0, 0, 0, control.padding, 0, 0)
            control.send()
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

    def _note(self, lane: Lane, start: int, tokens: Sequence[int], source: int) -> None:
        self._newest[lane.slot] = tokens[-1]
        self._taken.append(_Taken(lane, lane.slot, following(tokens, start, lane.shift, 0, source, 0)))

    def _take(self, records: Tokens) -> None:
        """Launch pairs in as many rows as graphs have."""
        for begin in range(0, len(records), MAX_COLUMNS):
            part = records[begin : begin + MAX_COLUMNS]
            width = bucket(len(part))
            filled = self._pairs.ring.next(width)
            filled[: len(part)] = part
            filled[len(part) :] = self._padding
            self._graphs.run(("take", width), partial(self._pairs.take, width))


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
