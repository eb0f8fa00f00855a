"""The token embedding."""

from __future__ import annotations

from torch import Tensor


def embedding(tokens: Tensor, table: Tensor) -> Tensor:
    """Row ``tokens[t]`` of the table for every t.

    Shapes: tokens [T] int64, table [V, H] → [T, H].
    """
    return table[tokens]
