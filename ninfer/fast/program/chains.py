"""Chains: operations in a row of which each takes every row of the round by itself.

A thread runs a whole chain over a block of rows before it takes another block. What one operation writes the
next one finds in the same core's cache, and threads meet once a chain instead of once an operation. Every
block reads all weights of its chain, so rounds of few rows run operation by operation.
"""

from __future__ import annotations

import numpy as np

from ninfer.fast.ops.control import MAX_COLUMNS
from ninfer.fast.ops.linear.tiles import TILE
from ninfer.fast.program import table as t

# Their tasks are numbered row by row, those of ``linear`` apart, and a row's results need no other row's.
_ROW_BY_ROW = frozenset(
    (t.EMBED, t.ROTARY, t.NORM, t.LINEAR, t.APPEND, t.MERGE, t.SWIGLU, t.KEEP, t.SCAN, t.DRAW)
)
# Rows of a block at least (measured 2026-12-01, 64 rows of ninfer-tiny by two threads: with 32 each 0.93 to
# 1.00 of the time of single operations, the less the slower cores see each other's memory; with 16 the same).
_LEAST_ROWS = 16


def chain_ends(opcodes: t.Longs) -> t.Longs:
    """For every operation, where the chain that it stands in ends; its own place if it is in none."""
    ends, end = np.zeros(len(opcodes), np.int64), len(opcodes)
    for index in range(len(opcodes) - 1, -1, -1):
        if opcodes[index] not in _ROW_BY_ROW:
            end = index
        ends[index] = end
    return ends


def block_rows(rows: int, threads: int) -> int:
    """Rows of a block, such that every thread gets as many blocks; 0: too few rows for chains."""
    if rows < _LEAST_ROWS * threads:
        return 0
    blocks = threads * -(-rows // (threads * MAX_COLUMNS))
    return -(-rows // (blocks * TILE)) * TILE
