"""A small table on its own memory for tests of the team: a residual stream that every run adds to.

An operation run twice, skipped or run by nobody changes the sum, so results tell what the threads did.
"""

from __future__ import annotations

import numpy as np

from ninfer.fast.ops.linear.contract import ADD
from ninfer.fast.ops.rms_norm import contract as rms_norm
from ninfer.fast.program.table import NORM, Table
from tests.support.fast import (
    Floats,
    Operation,
    Poisoned,
    address,
    fields,
    float_bits,
    linear_operation,
    store,
    table_of,
)

ROWS, HIDDEN, LAYERS = 48, 256, 4


class Stream:
    """``h += W norm(h)`` for every layer, over ``rows`` rows."""

    def __init__(self, rows: int = ROWS) -> None:
        random = np.random.default_rng(0)
        self.start = random.standard_normal((rows, HIDDEN)).astype(np.float32)
        self._h, self._normed = Poisoned(rows, HIDDEN), np.full((rows, HIDDEN), np.nan, np.float32)
        self._scale = np.ones(HIDDEN, np.float32)
        weights = random.standard_normal((LAYERS, HIDDEN, HIDDEN)).astype(np.float32) / 16
        self._weights = [store("bf16", matrix) for matrix in weights]
        self.reset()

    def reset(self) -> None:
        """Back to the first state."""
        self._h.values[:] = self.start

    @property
    def values(self) -> Floats:
        """The stream as it stands."""
        return self._h.values.copy()

    @property
    def operations(self) -> int:
        return 2 * LAYERS

    def table(self) -> Table:
        """Norm and product of every layer, in order."""
        operations: list[Operation] = []
        for matrix in self._weights:
            source = {"X": self._h.address, "X_STRIDE": self._h.stride, "N": HIDDEN}
            target = {"Y": address(self._normed), "Y_STRIDE": self._normed.strides[0]}
            norm = fields(
                rms_norm, **source, **target, WEIGHT=address(self._scale), EPS_BITS=float_bits(1e-6)
            )
            operations += [(NORM, norm), linear_operation(matrix.segment(self._normed, self._h, mode=ADD))]
        table: Table = table_of(operations)
        return table
