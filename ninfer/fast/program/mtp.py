"""The multi-token prediction head on its own workspace: take pairs into its cache, and draft from the newest.

Owns the head's table and its calls. A pair joins the final hidden row of position p with the token at p + 1;
its key and value stand at p, in pages and rows that the text model's layers use for p too. What it reads of
drafts beyond the frontier is overwritten by true pairs before anybody reads it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ninfer.fast.memory.pages import PagePool
from ninfer.fast.memory.states import StateImages
from ninfer.fast.ops.attention.contract import SPLIT_TOKENS
from ninfer.fast.ops.control import AXIS_T, AXIS_W, MAX_COLUMNS, POSITION, TOKEN
from ninfer.fast.ops.select import contract as select
from ninfer.fast.program import table as t
from ninfer.fast.program.layers import LayerTable
from ninfer.fast.program.parameters import LayerWeights, TextWeights, load_layer
from ninfer.fast.program.proposal import proposal_ids
from ninfer.fast.program.round import RoundRunner
from ninfer.fast.program.text import Range, pending_table
from ninfer.fast.program.text_rows import fill_text_rows
from ninfer.fast.program.weights import Matrix, WeightLoader
from ninfer.fast.program.wiring import FLOATS, Reads, Wiring
from ninfer.model.config import TextConfig
from ninfer.model.parameters import mtp_parameters

if TYPE_CHECKING:
    from ninfer.fast.memory.lanes import Lane

Floats = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class MtpWeights:
    """The head's own weights; norms hold 1 + w. ``token_ids`` are the ids of a proposal head's rows."""

    input_projection: Matrix
    embedding_norm: Floats
    hidden_norm: Floats
    layer: LayerWeights
    final_norm: Floats
    head: Matrix
    token_ids: Tokens | None


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Consecutive pairs of one lane from place ``start``.

    Shapes: ``hidden`` [n, H] residual rows, ``tokens`` [n] the ids after them, ``axes`` [3, n] the rotary
    positions of the rows (None: those of text that follows the prompt).
    """

    lane: Lane
    start: int
    hidden: Floats
    tokens: Tokens
    axes: Tokens | None = None

    def part(self, begin: int, end: int) -> Pairs:
        """The pairs ``begin``..``end``, counted from the first."""
        rows = slice(begin, end)
        axes = None if self.axes is None else self.axes[:, rows]
        return Pairs(self.lane, self.start + begin, self.hidden[rows], self.tokens[rows], axes)


def load_mtp_weights(
    loader: WeightLoader, config: TextConfig, text: TextWeights, proposal_head: bool
) -> MtpWeights:
    """Load the head. Errors: ``ArtifactError`` for a shape or format that the kernels cannot compute."""
    for parameter in mtp_parameters(config):
        loader.check_shape(parameter.name, parameter.shape)
    head, ids = text.head, None
    if proposal_head:
        ids = proposal_ids(loader, config)
        head = loader.matrix("proposal/head")
    return MtpWeights(
        input_projection=loader.matrix("mtp/input_projection"),
        embedding_norm=loader.vector("mtp/embedding_norm", 1.0),
        hidden_norm=loader.vector("mtp/hidden_norm", 1.0),
        layer=load_layer(loader, config, "mtp/layers/0", attention=True),
        final_norm=loader.vector("mtp/final_norm", 1.0),
        head=head,
        token_ids=ids,
    )


class MtpTable(LayerTable):
    """The head's operations. ``take`` and ``draft`` begin with the text model's final norm of ``given``.

    ``again`` is ``draft`` without it: there ``previous`` holds the head's own rows. ``take`` only fills the
    cache. Results of a draft lie in ``final`` and ``drawn``, a row for each of at most ``lanes`` lanes.
    """

    def __init__(
        self,
        config: TextConfig,
        weights: MtpWeights,
        text: TextWeights,
        states: StateImages,
        pages: PagePool,
        max_context: int,
        vocabulary: int,
        threads: int,
        builder: t.TableBuilder,
        lanes: int = MAX_COLUMNS,
        reads: Reads = FLOATS,
    ) -> None:
        splits = -(-max_context // SPLIT_TOKENS)
        wiring = Wiring(config, states, pages, MAX_COLUMNS, threads, splits, reads)
        super().__init__(config, wiring, builder)
        self._weights, self._text, self._lanes = weights, text, lanes
        self.given = wiring.workspace.buffer("given", config.hidden)
        self.previous = wiring.activations("previous", config.hidden)
        self.final = wiring.activations("final", config.hidden, lanes)
        self.logits = wiring.workspace.buffer("logits", weights.head.rows, lanes)
        self.drawn = wiring.array("drawn", lanes, np.int64)
        self.pending = pending_table(wiring, lanes)
        begin = builder.length
        self._stem()
        self._take()
        self.take: Range = (begin, builder.length)
        begin = builder.length
        self._stem()
        self._draft(min(vocabulary, weights.head.rows))
        self.draft: Range = (begin, builder.length)
        self.again: Range = (begin + 1, builder.length)

    def _stem(self) -> None:
        """``given`` → ``previous``; then [norm(embedding) ; norm(previous)] → the layer's residual rows."""
        wiring, add, hidden = self.wiring, self._builder.add, self._config.hidden
        assert self._config.attention is not None
        joined = wiring.activations("joined", 2 * hidden)
        add(t.NORM, wiring.norm(self._text.final_norm, self.previous, self.given))
        add(t.EMBED, wiring.embed(self._text.embedding))
        add(t.ROTARY, wiring.rotary(self._config.attention))
        add(t.NORM, wiring.norm(self._weights.embedding_norm, joined))
        add(t.NORM, wiring.norm(self._weights.hidden_norm, joined, self.previous.natural, hidden))
        self._builder.linear(wiring.segments(self._weights.input_projection, joined, wiring.hidden))

    def _take(self) -> None:
        """Keys and values alone."""
        wiring, layer = self.wiring, self._weights.layer
        x = wiring.activations("normed", self._config.hidden)
        self._builder.add(t.NORM, wiring.norm(layer.input_norm, x))
        self.keys_alone(self._place, layer, x)

    def _draft(self, vocabulary: int) -> None:
        wiring, config = self.wiring, self._config
        self.layer(self._place, self._weights.layer, wiring.activations("normed", config.hidden))
        self._builder.add(t.NORM, wiring.norm(self._weights.final_norm, self.final))
        self._builder.linear(wiring.segments(self._weights.head, self.final, self.logits))
        slices = -(-vocabulary // select.SLICE)
        best = wiring.array("best", self._lanes * slices * (1 + 2 * select.CANDIDATES), np.int64)
        logits = (self.logits.address, self.logits.stride, vocabulary)
        results = (best.ctypes.data, self.drawn.ctypes.data, self.pending.ctypes.data)
        for opcode in (t.SCAN, t.DRAW):
            self._builder.add(opcode, (*logits, *results))

    @property
    def _place(self) -> int:
        """The head's layer in the page pool, behind the text model's."""
        return mtp_layer(self._config)


def mtp_layer(config: TextConfig) -> int:
    """The number under which the page pool keeps the head's keys and values."""
    return len(config.layer_types)


class MtpRunner:
    """Runs the head. Not thread-safe; uses the round's control tables, so no verification may be open."""

    def __init__(self, table: MtpTable, runner: RoundRunner) -> None:
        self._table, self._runner = table, runner

    def take(self, pairs: Sequence[Pairs]) -> None:
        """Keys and values of true pairs, of any number of lanes and rows."""
        filled = 0
        for one in pairs:
            begin = 0
            while begin < len(one.tokens):
                end = min(len(one.tokens), begin + MAX_COLUMNS - filled)
                filled = self._fill(filled, one.part(begin, end))
                begin = end
                if filled == MAX_COLUMNS:
                    self._runner.run(*self._table.take, filled, 0)
                    filled = 0
        if filled:
            self._runner.run(*self._table.take, filled, 0)

    def start(self, newest: Sequence[Pairs]) -> list[int]:
        """Each lane's newest pair in; the head's draw after it, per lane, by the samplers set before."""
        filled = 0
        for one in newest:
            filled = self._fill(filled, one)
        return self._run(self._table.draft, filled)

    def step(self, tokens: Sequence[int]) -> list[int]:
        """One draft further: ``tokens`` are the last draws, fed back with the head's own rows."""
        count, rows = len(tokens), self._runner.rows
        self._table.previous.natural.array[:count] = self._table.final.natural.array[:count]
        rows[:count, TOKEN] = tokens
        rows[:count, POSITION] += 1
        rows[:count, AXIS_T : AXIS_W + 1] += 1
        return self._run(self._table.again, count)

    @property
    def pending(self) -> npt.NDArray[np.int32]:
        """Per row, the drafts that count as output before the next draw."""
        return self._table.pending

    def _run(self, operations: Range, count: int) -> list[int]:
        self._runner.run(*operations, count, 0)
        return [int(token) for token in self._table.drawn[:count]]

    def _fill(self, column: int, pairs: Pairs) -> int:
        """Put pairs into the rows from ``column``; the row after them."""
        width, end = pairs.hidden.shape[1], column + len(pairs.tokens)
        rows = self._runner.rows[column:end]
        fill_text_rows(rows, pairs.lane, pairs.start, pairs.tokens)
        if pairs.axes is not None:
            rows[:, AXIS_T : AXIS_W + 1] = pairs.axes.T
        self._table.given.array[column:end, :width] = pairs.hidden
        return end
