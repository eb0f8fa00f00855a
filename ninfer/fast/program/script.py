"""A chunk's work as a list of steps: ranges of the table's operations and the platform's matrix products.

Operations that follow each other are one step, one compiled call. Nothing here knows a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ninfer.fast.program.table import TableBuilder


class Step(Protocol):
    """Something to do for the chunk's first ``count`` rows with the platform's library."""

    def run(self, count: int) -> None:
        """Do it."""


@dataclass(frozen=True, slots=True)
class Operations:
    """A range of the table's operations."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Multiply:
    """``y`` = ``x`` ``weights``, or +=. Shapes: [rows, K], [K, N], [rows, N] over whole buffers, float32."""

    x: Tensor
    weights: Tensor
    y: Tensor
    adds: bool

    def run(self, count: int) -> None:
        """Multiply the first ``count`` rows."""
        x, y = self.x[:count], self.y[:count]
        if self.adds:
            y.addmm_(x, self.weights)
        else:
            torch.mm(x, self.weights, out=y)


@dataclass(frozen=True, slots=True, eq=False)
class RoundedMultiply:
    """As ``Multiply`` with ``x`` and ``weights`` in bfloat16; the product is rounded too, in ``memory``."""

    x: Tensor
    weights: Tensor
    y: Tensor
    adds: bool
    memory: Tensor

    def run(self, count: int) -> None:
        """Multiply the first ``count`` rows."""
        columns = self.y.shape[1]
        product = self.memory[: count * columns].view(count, columns)
        torch.mm(self.x[:count], self.weights, out=product)
        y = self.y[:count]
        if self.adds:
            y.add_(product)
        else:
            y.copy_(product)


class Script:
    """Collects steps in order; operations go to the end of ``builder``'s table."""

    def __init__(self, builder: TableBuilder) -> None:
        self._builder = builder
        self._begin = builder.length
        self._steps: list[Operations | Step] = []

    def operation(self, opcode: int, descriptor: Sequence[int]) -> None:
        """Append one operation of the table."""
        self._builder.add(opcode, descriptor)

    def linear(self, segments: Sequence[Sequence[int]]) -> None:
        """Append one ``linear`` of the table."""
        self._builder.linear(segments)

    def step(self, step: Step) -> None:
        """Append something else; what was appended before comes first."""
        self._close()
        self._steps.append(step)

    def reserve(self, opcode: int, count: int) -> int:
        """Operations that are no step: whoever asked fills their descriptors and runs them. The first."""
        self._close()
        begin = self._builder.length
        for _ in range(count):
            self._builder.add(opcode, ())
        self._begin = self._builder.length
        return begin

    def _close(self) -> None:
        if self._builder.length > self._begin:
            self._steps.append(Operations(self._begin, self._builder.length))
        self._begin = self._builder.length

    def build(self) -> tuple[Operations | Step, ...]:
        """All steps."""
        self._close()
        return tuple(self._steps)
