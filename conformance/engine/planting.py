"""How a fault gets into a program from outside: hooks around operations, changed sampler records.

Everything here rewrites an instance that a test owns; no class and no module of the product is touched.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.engine.draws import ModelDraw
from ninfer.fast.program import table as t
from ninfer.fast.program.program import Program

Plant = Callable[[Program], None]
NANO = ModelDraw()
# Called around one operation of the table: its index and the rows and blocks of the run.
Hook = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """How to plant it, and the smallest model, KV format and context in which it matters."""

    plant: Plant
    model: ModelDraw = NANO
    kv_format: str = "float32"
    long: bool = False


def floats_at(address: int, count: int) -> npt.NDArray[np.float32]:
    """A view of ``count`` floats in the program's memory."""
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(int(address)))


def around(program: Program, opcode: int, in_round: bool, before: Hook | None, after: Hook | None) -> None:
    """Run the table one operation at a time, with hooks around those of ``opcode``.

    Short chunks run a round's operations, and are no round.
    """
    runner, (begin, end) = program._runner, program._table.forward
    inner, opcodes = runner.run, runner._table.opcodes

    def run(first: int, last: int, rows: int, blocks: int) -> None:
        if first == last:  # the end of the helper threads
            inner(first, last, rows, blocks)
        of_round = (first, last) != program._table.chunk
        for index in range(first, last):
            hit = opcodes[index] == opcode and (of_round and begin <= index < end) == in_round
            if hit and before is not None:
                before(index, rows, blocks)
            inner(index, index + 1, rows, blocks)
            if hit and after is not None:
                after(index, rows, blocks)

    runner.run = run  # type: ignore[method-assign]


def sampler_fault(change: Callable[[Any, int], None]) -> Plant:
    """Change every row's sampler record after it was set, before anything is drawn."""

    def plant(program: Program) -> None:
        def before(index: int, rows: int, blocks: int) -> None:
            for row in range(rows):
                change(program._runner.samplers, row)

        around(program, t.SCAN, False, before, None)

    return plant


def operations(program: Program, opcode: int, in_round: bool) -> list[int]:
    """Indices of the table's operations of one kind, of the round or of everything else."""
    begin, end = program._table.forward
    opcodes = program._runner._table.opcodes
    return [i for i in np.flatnonzero(opcodes == opcode) if (begin <= i < end) == in_round]


def swap_first_two(array: npt.NDArray[Any], field: int) -> None:
    """Exchange one field of the first two records."""
    array[[0, 1], field] = array[[1, 0], field]
