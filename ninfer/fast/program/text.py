"""The text model's round as a table: Forward to float32 logits, Finish to tokens, fold after verifying.

Owns the order of operations; buffers and descriptors stand in ``wiring.py``, the mathematics in ``ops``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ninfer.fast.memory.pages import PagePool
from ninfer.fast.memory.states import StateImages
from ninfer.fast.ops.attention.contract import SPLIT_TOKENS
from ninfer.fast.ops.control import MAX_COLUMNS
from ninfer.fast.ops.select import contract as select
from ninfer.fast.program import table as t
from ninfer.fast.program.layers import LayerTable
from ninfer.fast.program.parameters import TextWeights
from ninfer.fast.program.wiring import FLOATS, Reads, Wiring
from ninfer.model.config import TextConfig

Range = tuple[int, int]


def pending_table(wiring: Wiring, rows: int) -> npt.NDArray[np.int32]:
    """Per row, the drafts that count as output before it: none of them, at first."""
    words = wiring.array("pending", rows * select.PENDING_WORDS, np.int32)
    return words.reshape(rows, select.PENDING_WORDS)


class TextTable(LayerTable):
    """A model's round; ``forward`` and what else is a ``Range`` are operations.

    ``chunk`` is the part of ``forward`` up to the residual rows, ``head`` the rest of it, to logits;
    ``finish`` follows and draws; ``round`` is both. Results lie in ``logits`` [rows, vocabulary] and
    ``drawn`` [rows]; ``pending`` holds the drafts before each column.

    A round has at most ``columns`` columns, and leaves residual rows of ``kept_places`` places where its
    lanes keep them. If it ``verifies``, ``recorded`` is a Forward that leaves records too, layer by layer,
    for ``fold``; ``verify`` is that and a finish. Rounds that need no records leave that memory alone.
    """

    def __init__(
        self,
        config: TextConfig,
        weights: TextWeights,
        states: StateImages,
        pages: PagePool | None,
        max_context: int,
        vocabulary: int,
        threads: int,
        builder: t.TableBuilder,
        columns: int = MAX_COLUMNS,
        verifies: bool = True,
        reads: Reads = FLOATS,
        kept_places: int = 0,
    ) -> None:
        assert verifies or not kept_places, "only a drafter reads what is kept"
        splits = -(-max_context // SPLIT_TOKENS)
        wiring = Wiring(config, states, pages, MAX_COLUMNS, threads, splits, reads)
        super().__init__(config, wiring, builder)
        self._weights, self.columns = weights, columns
        self.final = self.wiring.activations("final", config.hidden, columns)
        self.logits = self.wiring.workspace.buffer("logits", config.vocab, columns)
        self.drawn = self.wiring.array("drawn", columns, np.int64)
        self.pending = pending_table(self.wiring, columns)
        self.forward = self._forward(0, kept_places)
        self.head: Range = (self.forward[1] - 2, self.forward[1])
        self.chunk: Range = (self.forward[0], self.head[0])
        self._finish(vocabulary)
        self.finish: Range = (self.forward[1], self._builder.length)
        self.round: Range = (self.forward[0], self.finish[1])
        if verifies:
            self.recorded = self._forward(columns, kept_places)
            self._finish(vocabulary)
            self.verify: Range = (self.recorded[0], self._builder.length)
            for descriptor in self.delta_nets:
                self._builder.add(t.FOLD, descriptor)
                self._builder.add(t.SHIFT, descriptor)
            self.fold: Range = (self.verify[1], self._builder.length)

    def _forward(self, recorded: int, kept_places: int) -> Range:
        begin = self._builder.length
        self._residual(recorded)
        if kept_places:
            self._builder.add(t.KEEP, self.wiring.keep(kept_places))
        self._builder.add(t.NORM, self.wiring.norm(self._weights.final_norm, self.final))
        self._builder.linear(self.wiring.segments(self._weights.head, self.final, self.logits))
        return begin, self._builder.length

    def _residual(self, recorded: int) -> None:
        """Token embeddings through every layer, each with records of so many columns."""
        wiring, add = self.wiring, self._builder.add
        add(t.EMBED, wiring.embed(self._weights.embedding))
        if self._config.attention is not None:
            add(t.ROTARY, wiring.rotary(self._config.attention))
        x = wiring.activations("normed", self._config.hidden)
        for layer, weights in enumerate(self._weights.layers):
            self.layer(layer, weights, x, recorded)

    def _finish(self, vocabulary: int) -> None:
        slices = -(-vocabulary // select.SLICE)
        best = self.wiring.array("best", self.columns * slices * (1 + 2 * select.CANDIDATES), np.int64)
        logits = (self.logits.address, self.logits.stride, vocabulary)
        results = (best.ctypes.data, self.drawn.ctypes.data, self.pending.ctypes.data)
        for opcode in (t.SCAN, t.DRAW):
            self._builder.add(opcode, (*logits, *results))
