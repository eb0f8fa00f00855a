"""A program that keeps what lies behind every draw: the logits, and the experts each token went to.

It stands between the worker and a real ``Program`` and changes nothing that is computed: experts are seen by
giving every layer's choice an array of its own in the table of descriptors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from conformance.engine.kv import Stored, stored_rows
from ninfer.fast.memory.lanes import Lane
from ninfer.fast.ops.control import MAX_COLUMNS
from ninfer.fast.ops.moe import contract as moe
from ninfer.fast.program import table as t
from ninfer.fast.program.chunk_experts import Experts
from ninfer.fast.program.prefill import SHORT_TOKENS
from ninfer.fast.program.program import Program, Row, Sampler, Tokens

Floats = npt.NDArray[np.float32]
Choice = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class LaneLog:
    """One sequence: logits [V] of each draw, sizes of rounds, experts [tokens, k] and KV rows by layer."""

    logits: list[Floats] = field(default_factory=list)
    choices: dict[int, list[Choice]] = field(default_factory=dict)
    widths: list[int] = field(default_factory=list)
    stored: dict[int, Stored] = field(default_factory=dict)

    def routes(self) -> dict[int, Choice]:
        """Per layer, the experts [tokens, k] of every token that was taken in, in order."""
        return {layer: np.concatenate(parts) for layer, parts in self.choices.items()}


class RecordingProgram:
    """Stands in for ``program``; ``opened`` is the log of the lane that was opened last."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.options, self.config = program.options, program.config
        self.memory = program.memory
        self.opened = LaneLog()
        self._logs: dict[Lane, LaneLog] = {}
        self._chosen: dict[int, Choice] = {}
        self._prefilling = LaneLog()
        if self.config.moe is not None:
            self._watch_rounds(self.config.moe.experts_per_token)
            self._watch_prefill()

    @property
    def last_unit(self) -> tuple[float, float]:
        return self.program.last_unit

    def open_lane(self, ceiling: int = 0) -> Lane:
        lane = self.program.open_lane(ceiling)
        self.opened = self._logs[lane] = LaneLog()
        return lane

    def close_lane(self, lane: Lane) -> None:
        log = self._logs.pop(lane)
        if self.program.pages is not None:
            for layer, pool in self.program.pages.layers.items():
                rows = stored_rows(pool, self.options.kv_format, lane.block_table, lane.frontier)
                log.stored[layer] = rows
        self.program.close_lane(lane)

    def prefill(self, lane: Lane, tokens: Tokens, axes: Tokens) -> Floats:
        self._prefilling = self._logs[lane]
        row = self.program.prefill(lane, tokens, axes)
        if len(tokens) <= SHORT_TOKENS:
            for layer, chosen in self._chosen.items():
                self._prefilling.choices.setdefault(layer, []).append(chosen[: len(tokens)].copy())
        return row

    def first(self, lane: Lane, row: Floats, sampler: Sampler) -> int:
        drawn = self.program.first(lane, row, sampler)
        self._logs[lane].logits.append(self.program.logits(1)[0].copy())
        return drawn

    def round(self, rows: Sequence[Row]) -> list[int]:
        drawn = self.program.round(rows)
        logits = self.program.logits(len(rows)).copy()
        for index, row in enumerate(rows):
            log = self._logs[row.lane]
            log.logits.append(logits[index])
            log.widths.append(len(rows))
            for layer, chosen in self._chosen.items():
                log.choices.setdefault(layer, []).append(chosen[index : index + 1].copy())
        return drawn

    def check_integrity(self, cached_pages: int = 0, cached_slots: int = 0) -> None:
        self.program.check_integrity(cached_pages, cached_slots)

    def _watch_rounds(self, per_token: int) -> None:
        table, text = self.program._runner._table, self.program._table
        for begin, end in {text.forward, text.chunk}:
            layer = -1
            for index in range(begin, end):
                opcode = table.opcodes[index]
                layer += opcode == t.ROUTE
                if opcode in (t.ROUTE, t.EXPAND, t.CONTRACT):
                    chosen = self._chosen.setdefault(layer, np.zeros((MAX_COLUMNS, per_token), np.int64))
                    table.descriptors[index, moe.CHOICE] = chosen.ctypes.data

    def _watch_prefill(self) -> None:
        steps = self.program._prefill._table.steps
        for layer, step in enumerate(step for step in steps if isinstance(step, Experts)):
            self._watch_experts(layer, step)

    def _watch_experts(self, layer: int, experts: Experts) -> None:
        inner = experts.run

        def run(count: int) -> None:
            inner(count)
            chosen = experts._choice[:count].numpy().copy()
            self._prefilling.choices.setdefault(layer, []).append(chosen)

        experts.run = run  # type: ignore[method-assign]
