"""Activation buffers of a round: one row per column that it may have, allocated before start-up ends.

Owns the arrays; a buffer is named once and found by name. Rows are padded to a K step with zeros that no
operation ever writes, and every row begins on a cache line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.fast.program.weights import padded

_LINE = 64


def aligned_zeros(count: int, dtype: Any) -> npt.NDArray[Any]:
    """A zeroed one-dimensional array that begins on a cache line."""
    size = np.dtype(dtype).itemsize
    memory = np.zeros(count * size + _LINE, np.uint8)
    begin = -memory.ctypes.data % _LINE
    return memory[begin : begin + count * size].view(dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Rows of float32: ``array`` [rows, width], its address and row stride in bytes."""

    array: npt.NDArray[np.float32]

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)

    @property
    def stride(self) -> int:
        return int(self.array.strides[0])


class Workspace:
    """Named buffers of ``rows`` rows, unless one is asked for with fewer."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._buffers: dict[str, Buffer] = {}
        self._parts: dict[str, Buffer] = {}

    def buffer(self, name: str, columns: int, rows: int | None = None) -> Buffer:
        """The buffer ``name`` of at least ``columns`` columns; the first call decides its width and rows."""
        if name in self._parts:
            assert self._parts[name].array.shape[1] == columns, f"{name} has not {columns} columns"
            return self._parts[name]
        if name not in self._buffers:
            width = padded(columns)
            count = self.rows if rows is None else rows
            self._buffers[name] = Buffer(aligned_zeros(count * width, np.float32).reshape(count, width))
        buffer = self._buffers[name]
        assert buffer.array.shape[1] >= columns, f"{name} is narrower than {columns}"
        return buffer

    def side_by_side(self, name: str, columns: dict[str, int]) -> Buffer:
        """The buffer ``name`` whose columns are the buffers of ``columns``, in order and without gaps."""
        whole = self.buffer(name, sum(columns.values()))
        begin = 0
        for part, count in columns.items():
            self._parts.setdefault(part, Buffer(whole.array[:, begin : begin + count]))
            begin += count
        return whole

    @property
    def bytes(self) -> int:
        return sum(buffer.array.nbytes for buffer in self._buffers.values())
