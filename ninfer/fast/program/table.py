"""The operations of a round by number, and the builder of its table.

A round is a table of descriptors built once per model: what changes (rows, blocks, samplers) stands in the
control tables. Owns numbering and layout only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ninfer.fast.ops.linear.contract import SEGMENT_FIELDS

(
    EMBED,
    ROTARY,
    NORM,
    LINEAR,
    APPEND,
    ATTEND,
    MERGE,
    CONVOLVE,
    RECUR,
    FOLD,
    SHIFT,
    SWIGLU,
    ROUTE,
    EXPAND,
    CONTRACT,
    SCAN,
    DRAW,
    DECODE,
    ATTEND_CHUNK,
    KEEP,
) = range(20)

DESCRIPTOR_FIELDS = 32

Longs = npt.NDArray[np.int64]


class TableBuilder:
    """Collects operations in order; ``build`` freezes them into arrays."""

    def __init__(self) -> None:
        self._opcodes: list[int] = []
        self._descriptors: list[list[int]] = []
        self._segments: list[list[int]] = []

    @property
    def length(self) -> int:
        return len(self._opcodes)

    def add(self, opcode: int, descriptor: Sequence[int]) -> None:
        """Append one operation with its descriptor fields in contract order."""
        self._opcodes.append(opcode)
        self._descriptors.append([*descriptor, *([0] * (DESCRIPTOR_FIELDS - len(descriptor)))])

    def linear(self, segments: Sequence[Sequence[int]]) -> None:
        """Append one ``linear`` over several segments that read the same activations."""
        first = len(self._segments)
        self._segments += [list(segment) for segment in segments]
        self.add(LINEAR, (first, len(self._segments)))

    def build(self) -> Table:
        """The finished table."""
        segments = self._segments or [[0] * SEGMENT_FIELDS]
        return Table(
            np.array(self._opcodes, np.int64),
            np.array(self._descriptors, np.int64),
            np.array(segments, np.int64),
        )


class Table:
    """Opcodes [n], descriptors [n, DESCRIPTOR_FIELDS] and linear segments [s, SEGMENT_FIELDS]; read-only."""

    def __init__(self, opcodes: Longs, descriptors: Longs, segments: Longs) -> None:
        self.opcodes, self.descriptors, self.segments = opcodes, descriptors, segments
