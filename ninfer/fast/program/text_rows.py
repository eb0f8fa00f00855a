"""Control rows of a lane's next places where they are text: every axis counts on with the place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ninfer.fast.ops.control import AXIS_W, MAX_COLUMNS, POSITION, ROW_FIELDS, TOKEN

if TYPE_CHECKING:
    from ninfer.fast.memory.lanes import Lane

# What row n adds to the first one.
_STEPS = np.zeros((MAX_COLUMNS, ROW_FIELDS), np.int64)
_STEPS[:, POSITION : AXIS_W + 1] = np.arange(MAX_COLUMNS)[:, None]


def fill_text_rows(
    rows: npt.NDArray[np.int64], lane: Lane, place: int, tokens: npt.NDArray[np.int32]
) -> None:
    """Rows [n, ROW_FIELDS] of ``tokens`` [n] at ``place`` and after it; n is at most MAX_COLUMNS."""
    # Few calls of numpy: after a pass over the weights each of them is cold.
    axis = place + lane.shift
    first = (0, place, axis, axis, axis, lane.table_address, lane.kept)
    np.add(_STEPS[: len(tokens)], first, out=rows)
    rows[:, TOKEN] = tokens
