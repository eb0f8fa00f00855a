"""What the prediction head knows of each lane: pairs it has not taken in yet, and its drafts.

Owns the alignment: after the text model has taken in the tokens below the frontier F, every pair up to
place F − 1 is known, the newest one joining the last hidden row with the lane's pending token. Rounds leave
the residual rows of a lane's newest places here themselves, its ids stand in its text: pairs wait until there
is something to draft, so that a lane that never drafts pays nearly nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from ninfer.fast.memory.states import StateImages
from ninfer.fast.ops.control import MAX_COLUMNS
from ninfer.fast.program.mtp import MtpRunner, Pairs
from ninfer.fast.program.round import RoundRunner

if TYPE_CHECKING:
    from ninfer.fast.memory.lanes import Lane
    from ninfer.fast.program.program import Sampler

Floats = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]
SetSampler = Callable[[int, "Sampler", int], None]

# Places of which a lane's rows are kept; tokens that it may take in without this drafter being told.
KEPT_PLACES, UNTOLD = 8 * MAX_COLUMNS, 64
# Pairs that wait at most: a verification after that must leave their rows alone.
_MOST_WAITING = KEPT_PLACES - MAX_COLUMNS - UNTOLD


class Text(Protocol):
    """A growing sequence of committed ids."""

    def tokens(self, begin: int, end: int) -> Tokens:
        """Ids of the places ``begin..end``."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Wish:
    """At most ``count`` drafts for a lane, drawn as ``sampler`` would draw."""

    lane: Lane
    sampler: Sampler
    count: int


@dataclass(slots=True, eq=False)
class _Waiting:
    """Pairs from place ``start`` to the lane's frontier: rows [KEPT_PLACES, H] by place, ids in ``text``."""

    start: int
    rows: Floats
    text: Text


class MtpLanes:
    """The head for the lanes of one program; ``kept`` [lanes, KEPT_PLACES, H] is what its rounds write.

    ``token_ids``: the ids of its head's rows (None: the ids).
    """

    untold = UNTOLD

    def __init__(
        self,
        mtp: MtpRunner,
        runner: RoundRunner,
        states: StateImages,
        kept: Floats,
        set_sampler: SetSampler,
        token_ids: Tokens | None,
    ) -> None:
        self._mtp, self._runner, self._states = mtp, runner, states
        self._hidden, self._set_sampler, self._token_ids = kept.shape[2], set_sampler, token_ids
        self._free = list(kept)
        self._waiting: dict[int, _Waiting] = {}

    # --- what is known -----------------------------------------------------------------------------

    def prefilled(self, lane: Lane, start: int, tokens: Tokens, axes: Tokens, rows: Floats) -> None:
        """The text model took a chunk from place ``start``: its residual ``rows`` [T, H], in place.

        The chunk's own pairs go in at once, and the one that ended the chunk before it. The last row stays
        in the lane's state image, which is what a lane that resumes there needs.
        """
        last = self.last_row(lane)
        rows, first = rows[:, : self._hidden], axes[:, :1]
        own = Pairs(lane, start, rows[:-1], tokens[1:], axes[:, :-1])
        if start:
            before = Pairs(lane, start - 1, last[None].copy(), tokens[:1], first - 1)
            self._mtp.take([before, own])
        else:
            self._mtp.take([own])
        last[:] = rows[-1]

    def begin(self, lane: Lane, text: Text) -> None:
        """The prompt is in and its first output token is drawn: it ends ``text``, which grows from now on."""
        self.forget(lane)
        newest, rows = lane.frontier - 1, self._free.pop()
        rows[newest % KEPT_PLACES] = self.last_row(lane)
        lane.kept = rows.ctypes.data
        self._waiting[lane.slot] = _Waiting(newest, rows, text)

    def committed(self, lane: Lane, first: int, outputs: Sequence[int]) -> None:
        """Columns were committed, those from row ``first`` of the last Forward."""
        if lane.frontier - self._waiting[lane.slot].start > _MOST_WAITING:
            self.settle(lane)

    def settle(self, lane: Lane) -> None:
        """Take in all pairs but the newest: then the lane's pages hold everything below F − 1.

        Its state image holds the newest one's row.
        """
        waiting = self._waiting.get(lane.slot)
        if waiting is not None:
            newest = lane.frontier - 1
            self._mtp.take(self._pairs(lane, newest))
            waiting.start = newest
            self.last_row(lane)[:] = waiting.rows[newest % KEPT_PLACES]

    def forget(self, lane: Lane) -> None:
        """The lane is about to be closed."""
        waiting = self._waiting.pop(lane.slot, None)
        if waiting is not None:
            lane.kept = 0
            self._free.append(waiting.rows)

    def last_row(self, lane: Lane) -> Floats:
        """The residual row [H] of the last token taken in, in the lane's state image.

        It is that of the last prefill or ``settle``; later ones wait with their pairs.
        """
        return self._states.floats(lane.slot, self._states.hidden_offset, (self._hidden,))

    # --- drafts ------------------------------------------------------------------------------------

    def draft(self, wishes: Sequence[Wish]) -> list[Tokens]:
        """Drafts per wish, as many as asked for unless the head's logits are no numbers.

        They are drawn as the target would draw, with its uniform number at each place: the nearer the head
        comes to the target, the more often both draw the same.
        """
        # Lanes with more drafts first: a row leaves the batch when its lane has enough.
        order = sorted(range(len(wishes)), key=lambda index: -wishes[index].count)
        asked = [wishes[index] for index in order if wishes[index].count > 0]
        drafts: list[list[int]] = [[] for _ in asked]
        if asked:
            samplers = self._open(asked)
            drawn = self._mtp.start(
                [pair for wish in asked for pair in self._pairs(wish.lane, wish.lane.frontier)]
            )
            self._collect(asked, drafts, drawn, samplers)
        result = [np.zeros(0, np.int32) for _ in wishes]
        for index, found in zip(order, drafts, strict=False):
            valid = next((place for place, token in enumerate(found) if token < 0), len(found))
            result[index] = np.array(found[:valid], np.int32)
        return result

    def _collect(
        self, asked: Sequence[Wish], drafts: list[list[int]], drawn: list[int], counts: list[Tokens]
    ) -> None:
        while True:
            for row, local in enumerate(drawn):
                drafts[row].append(self._global(local))
            active = sum(wish.count > len(drafts[0]) for wish in asked)
            if not active:
                return
            for row in range(active):
                self._count(row, asked[row], drawn[row], len(drafts[row]))
            self._runner.samplers["position"][:active] += 1
            drawn = self._mtp.step([max(drafts[row][-1], 0) for row in range(active)])

    def _open(self, asked: Sequence[Wish]) -> list[Tokens]:
        """Take in what waits, set every row's sampler; the arrays that the samplers point to."""
        self._mtp.take([pairs for wish in asked for pairs in self._pairs(wish.lane, wish.lane.frontier - 1)])
        kept = []
        for row, wish in enumerate(asked):
            self._waiting[wish.lane.slot].start = wish.lane.frontier - 1
            self._set_sampler(row, wish.sampler, wish.lane.frontier + 1)
            self._mtp.pending[row, 0] = 0
            if self._token_ids is not None and _penalised(wish.sampler):
                local = np.take(wish.sampler.counts, self._token_ids, mode="clip").astype(np.int32)
                self._runner.samplers["counts"][row] = local.ctypes.data
                kept.append(local)
        return kept

    def _count(self, row: int, wish: Wish, local: int, drafts: int) -> None:
        """A draft counts as output for the next draw of its row."""
        if _penalised(wish.sampler) and local >= 0:
            pending = self._mtp.pending[row]
            held = pending[0]
            place = 1 + int(np.searchsorted(pending[1 : 1 + held], local))
            pending[place + 1 : held + 2] = pending[place : held + 1].copy()
            pending[place], pending[0] = local, held + 1

    def _global(self, local: int) -> int:
        return local if local < 0 or self._token_ids is None else int(self._token_ids[local])

    def _pairs(self, lane: Lane, end: int) -> list[Pairs]:
        """The pairs that wait before place ``end``; in two stretches where the places kept begin anew."""
        waiting = self._waiting[lane.slot]
        assert lane.frontier - waiting.start <= KEPT_PLACES, "rows of pairs that wait were overwritten"
        found, begin = [], waiting.start
        while begin < end:
            at = begin % KEPT_PLACES
            count = min(end - begin, KEPT_PLACES - at)
            tokens = waiting.text.tokens(begin + 1, begin + 1 + count)
            found.append(Pairs(lane, begin, waiting.rows[at : at + count], tokens))
            begin += count
        return found


def _penalised(sampler: Sampler) -> bool:
    parameters = sampler.parameters
    return bool(parameters.presence_penalty or parameters.frequency_penalty)
