"""The three position axes of text prompts.

Owns the shared axis; media give their own positions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class TextPositions:
    """Hands out 0, 1, 2, … on three axes without copying: every prompt sees one read-only array."""

    def __init__(self) -> None:
        self._axis = np.arange(4096, dtype=np.int32)

    def __call__(self, count: int) -> npt.NDArray[np.int32]:
        """Positions [3, count] int32, read-only."""
        axis = self._axis
        if len(axis) < count:
            axis = self._axis = np.arange(2 * count, dtype=np.int32)
        return np.broadcast_to(axis[:count], (3, count))
