"""Control records of rows that follow each other: one token a place, one place after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ninfer.fast.ops.control import MAX_COLUMNS
from ninfer.fast.ops.gpu_control import AXIS_H, AXIS_T, AXIS_W, BLOCK, POSITION, ROW_WORDS, TOKEN

Tokens = npt.NDArray[np.int32]

# Words that count on from row to row.
_ON = np.zeros((MAX_COLUMNS, ROW_WORDS), np.int32)
_ON[:, [POSITION, AXIS_T, AXIS_H, AXIS_W]] = np.arange(MAX_COLUMNS)[:, None]
_PAIRS = _ON.copy()
_PAIRS[:, BLOCK] = np.arange(MAX_COLUMNS)


def columns(tokens: Tokens, start: int, shift: int, table: int, block: int) -> Tokens:
    """Records [n, ROW_WORDS] of a block whose first column stands at ``start``.

    ``shift`` is the rotary position minus the place.
    """
    axis = start + shift
    records = _ON[: len(tokens)] + np.array((0, start, axis, axis, axis, table, block, start), np.int32)
    records[:, TOKEN] = tokens
    return records


def following(tokens: Sequence[int], start: int, shift: int, table: int, source: int, first: int) -> Tokens:
    """Records [n, ROW_WORDS] of pairs whose sources count on from ``source``."""
    axis = start + shift
    records = _PAIRS[: len(tokens)] + np.array((0, start, axis, axis, axis, table, source, first), np.int32)
    records[:, TOKEN] = tokens
    return records
