"""Samplers of a round's rows on the device, and each sequence's penalty counts beside its block table.

Counts follow the host's by what a round adds: the device knows every output token but the pending one, which
the round that takes it in counts, and drafts that were accepted, which the next round counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.fast.ops.select.gpu import EARLIER, unsigned_to_signed
from ninfer.fast.program.gpu.control import Control
from ninfer.sampling.parameters import SamplingParameters

Tokens = npt.NDArray[np.int32]
# The words of a row whose draw nobody reads: no counts, nothing to count, no mask.
NOBODY = np.array((0, 0, -1, -1, -1, 0, 0, 0), np.int64)


@dataclass(slots=True, eq=False)
class _Counted:
    """Whose output a table's counts hold; what they lack of it; whether they hold the pending token too."""

    sampler: object = None
    lacking: list[int] = field(default_factory=list)
    pending: bool = False


class Samplers:
    """Fills ``control``; table ``prompts`` is that of first tokens, whose counts are never kept."""

    def __init__(self, control: Control) -> None:
        self._control, self._prompts = control, control.prompts
        self._counted = [_Counted() for _ in range(control.prompts + 1)]

    def step(self, row: int, table: int, sampler: Any, position: int, counted: int) -> None:
        """One row that draws at ``position``; ``counted`` is the token it takes in, −1 for none."""
        penalised = self._parameters(row, sampler.parameters)
        if penalised:
            counts = self._known(table, sampler)
            if counts.pending:
                counted = -1
            elif counts.lacking:
                self._control.count(table, counts.lacking)
            counts.lacking, counts.pending = [], False
        self._words(slice(row, row + 1), sampler.parameters, table if penalised else -1, counted)
        self._control.host_words[row, 1] = position

    def block(self, row: int, table: int, sampler: Any, position: int, tokens: Tokens) -> None:
        """Rows that verify ``tokens`` [n], the pending one first; the first draws at ``position``.

        A draw counts the drafts before it as output, on top of the table's own counts.
        """
        penalised, end = self._parameters(row, sampler.parameters), row + len(tokens)
        if penalised:
            self.count(table, sampler, int(tokens[0]))
            self._counted[table].pending = False
        control = self._control
        control.host_numbers[row + 1 : end] = control.host_numbers[row]
        self._words(slice(row, end), sampler.parameters, table if penalised else -1, -1)
        control.host_words[row:end, 1] = np.arange(position, position + len(tokens))
        if penalised:
            control.host_words[row:end, EARLIER] = np.arange(len(tokens))

    def count(self, table: int, sampler: Any, pending: int) -> None:
        """Let a table's counts hold all output of ``sampler``, the pending token included."""
        counts = self._known(table, sampler)
        if not counts.pending:
            self._control.count(table, [*counts.lacking, pending])
            counts.lacking, counts.pending = [], True

    def draft(
        self, control: Control, row: int, table: int, sampler: Any, position: int, pending: int
    ) -> None:
        """A row of a drafter's own ``control`` that draws behind the ``pending`` token, then on and on."""
        p = sampler.parameters
        penalised = self._parameters(row, p, control)
        if penalised:
            self.count(table, sampler, pending)
        words = (unsigned_to_signed(p.seed), position, table if penalised else -1, -1, -1, 0, 0, 0)
        control.host_words[row] = words

    def committed(self, table: int, sampler: Any, tokens: Tokens, count: int) -> None:
        """Of a block's ``tokens`` the first ``count`` were taken in; drafts among them are output."""
        counts = self._counted[table]
        if counts.sampler is sampler:
            counts.lacking, counts.pending = tokens[1:count].tolist(), count == 0

    def idle(self, row: int, end: int) -> None:
        """Rows whose draws nobody reads."""
        self._control.host_numbers[row:end] = 0
        self._control.host_words[row:end] = NOBODY

    def _known(self, table: int, sampler: Any) -> _Counted:
        """The table's counts, which are those of ``sampler``."""
        counts = self._counted[table]
        for other in self._counted:
            if other.sampler is sampler and other is not counts:
                # The sequence goes on here: what was counted for it elsewhere grows old.
                other.sampler = None
        if counts.sampler is not sampler or table == self._prompts:
            # The host's counts include the pending token.
            self._control.set_counts(table, sampler.counts)
            counts.sampler, counts.lacking, counts.pending = sampler, [], True
        return counts

    def _parameters(self, row: int, p: SamplingParameters, control: Control | None = None) -> bool:
        (control or self._control).host_numbers[row, :6] = (
            p.temperature, p.top_p, p.min_p, p.presence_penalty, p.frequency_penalty, p.top_k
        )  # fmt: skip
        return bool(p.presence_penalty or p.frequency_penalty)

    def _words(self, rows: slice, p: SamplingParameters, table: int, counted: int) -> None:
        self._control.host_words[rows] = (unsigned_to_signed(p.seed), 0, table, counted, -1, 0, 0, 0)
