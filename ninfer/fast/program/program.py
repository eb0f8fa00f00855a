"""The one physical authority: weights, pages, state images and the compiled table of one model.

Owns every lane's memory and the two calls that compute: ``prefill`` takes a chunk of one lane, ``round`` one
token of several. Knows nothing of requests, text or order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ninfer.artifact import Artifact
from ninfer.errors import EngineError
from ninfer.fast.memory.lanes import Lane, LaneMemory
from ninfer.fast.memory.pages import PageOwners, PagePool
from ninfer.fast.memory.states import StateImages
from ninfer.fast.ops.control import MAX_COLUMNS
from ninfer.fast.ops.linear.formats import NAMES
from ninfer.fast.ops.select.contract import DEAD_END, NOT_A_NUMBER
from ninfer.fast.program.mtp import MtpRunner, MtpTable, MtpWeights, load_mtp_weights, mtp_layer
from ninfer.fast.program.mtp_lanes import KEPT_PLACES, MtpLanes
from ninfer.fast.program.parameters import TextWeights, load_text_weights, matrices
from ninfer.fast.program.prefill import Chunk, Prefill, PrefillTable
from ninfer.fast.program.round import RoundRunner
from ninfer.fast.program.table import TableBuilder
from ninfer.fast.program.text import TextTable
from ninfer.fast.program.verify import Block, Verifier
from ninfer.fast.program.weights import LoadListener, WeightLoader
from ninfer.fast.program.wiring import Reads, Wiring
from ninfer.model.config import TextConfig
from ninfer.sampling.parameters import SamplingParameters

Tokens = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """Sizes fixed at start-up. ``pages`` of 64 tokens; ``vocabulary`` ids may be drawn.

    ``snapshot_slots`` state images lie beyond those of the lanes. ``activations`` bf16 rounds the inputs of
    products with bf16 weights, and of other weights the inputs and results in prompts beyond a round's width.
    ``mtp`` loads the prediction head, with ``proposal_head`` as its output head. ``verified`` is the most
    columns of one verification; with 0 there is none.
    """

    lanes: int
    max_context: int
    pages: int
    kv_format: str
    prefill_chunk: int
    threads: int
    vocabulary: int
    activations: str = "float32"
    mtp: bool = False
    proposal_head: bool = False
    snapshot_slots: int = 0
    verified: int = MAX_COLUMNS

    @property
    def rounds_inputs(self) -> bool:
        """Whether products read their inputs as bf16."""
        return self.activations == "bf16"

    @property
    def columns(self) -> int:
        """Columns of the widest round that draws: every lane's one, or a verification's."""
        return max(self.lanes, self.verified)


@dataclass(frozen=True, slots=True, eq=False)
class Sampler:
    """How one lane draws: effective parameters and the counts of its committed output."""

    parameters: SamplingParameters
    counts: Counts
    _before: tuple[float, ...] = field(init=False, repr=False)
    _address: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        p = self.parameters
        before = (p.temperature, p.top_p, p.min_p, p.presence_penalty, p.frequency_penalty, p.top_k, p.seed)
        object.__setattr__(self, "_before", before)
        object.__setattr__(self, "_address", int(self.counts.ctypes.data))

    def at(self, position: int) -> tuple[float, ...]:
        """The fields of ``select``'s parameters for a draw at ``position``; nothing is masked."""
        return (*self._before, position, self._address, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One lane's part in a round: the token to take in and the sampler of the next."""

    lane: Lane
    token: int
    sampler: Sampler


class Program:
    """A loaded text model with its memory. Not thread-safe: one worker owns it.

    ``last_unit``: when the last call was launched and ended, in seconds of one clock.
    """

    def __init__(
        self,
        artifact: Artifact,
        config: TextConfig,
        options: ProgramOptions,
        listener: LoadListener | None = None,
    ) -> None:
        self.config, self.options = config, options
        self._stored = [NAMES[name] for name in artifact.weight_summary().by_format if name in NAMES]
        loader = WeightLoader(artifact, listener)
        weights = load_text_weights(loader, config)
        self.states = StateImages(config, options.lanes + options.snapshot_slots)
        attention = [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"]
        if options.mtp:
            attention.append(mtp_layer(config))
        self.pages = (
            None
            if config.attention is None
            else PagePool(config.attention, attention, options.pages, options.kv_format)
        )
        owners = PageOwners(options.pages) if self.pages is None else self.pages
        self.memory = LaneMemory(self.states, owners, options.max_context)
        builder = TableBuilder()
        self._table = TextTable(
            config,
            weights,
            self.states,
            self.pages,
            options.max_context,
            options.vocabulary,
            options.threads,
            builder,
            options.columns,
            options.verified > 0,
            self._reads(weights),
            KEPT_PLACES if options.mtp else 0,
        )
        sizes = (options.prefill_chunk, options.threads, 1)
        reads = Reads(evens=False, rounded=options.rounds_inputs)
        wiring = Wiring(config, self.states, self.pages, *sizes, reads)
        prefill_table = PrefillTable(builder, wiring, weights, options.threads)
        head = load_mtp_weights(loader, config, weights, options.proposal_head) if options.mtp else None
        mtp_table = None if head is None else self._mtp_table(head, weights, builder)
        self._runner = RoundRunner(builder.build(), options.threads, options.prefill_chunk)
        self._prefill = Prefill(self.states, wiring, prefill_table, self._table, self._runner)
        self._verifier = Verifier(self._runner, self._table, self.states, self._set_sampler)
        self.mtp: MtpLanes | None = None
        if head is not None and mtp_table is not None:
            shape = (options.lanes, KEPT_PLACES, config.hidden)
            kept = self._table.wiring.array("kept", math.prod(shape), np.float32).reshape(shape)
            mtp = MtpRunner(mtp_table, self._runner)
            self.mtp = MtpLanes(mtp, self._runner, self.states, kept, self._set_sampler, head.token_ids)
        self.last_unit = (0.0, 0.0)
        self.workspace_bytes = self._table.wiring.bytes + wiring.bytes
        if mtp_table is not None:
            self.workspace_bytes += mtp_table.wiring.bytes

    def _reads(self, weights: TextWeights | MtpWeights) -> Reads:
        """What rounds with these weights read."""
        evens = any(matrix.evens_first for matrix in matrices(weights))
        return Reads(evens, self.options.rounds_inputs)

    def _mtp_table(self, head: MtpWeights, weights: TextWeights, builder: TableBuilder) -> MtpTable:
        assert self.pages is not None, "a head's config has attention members"
        options = self.options
        sizes = (options.max_context, options.vocabulary, options.threads)
        lanes, reads = options.lanes, self._reads(head)
        memory = (self.states, self.pages)
        return MtpTable(self.config, head, weights, *memory, *sizes, builder, lanes, reads)

    # --- lanes -------------------------------------------------------------------------------------

    @property
    def free_pages(self) -> int:
        return self.memory.free_pages

    def open_lane(self, ceiling: int = 0) -> Lane:
        """A zeroed state image and pages for ``ceiling`` tokens; ``memory`` adds more."""
        return self.memory.open(ceiling)

    def close_lane(self, lane: Lane) -> None:
        """Give a lane's memory back."""
        self.memory.close(lane)

    # --- computing ---------------------------------------------------------------------------------

    def prefill(self, lane: Lane, tokens: Tokens, axes: Tokens) -> npt.NDArray[np.float32]:
        """Take a chunk of at most ``prefill_chunk`` tokens; the residual row of its last one.

        Shapes: ``tokens`` [T] int32, ``axes`` [3, T] int32.
        """
        assert 0 < len(tokens) <= self.options.prefill_chunk
        launched = time.monotonic()
        row = self._prefill.run(Chunk(tokens, axes, lane.frontier, lane.block_table, lane.slot))
        if self.mtp is not None:
            self.mtp.prefilled(lane, lane.frontier, tokens, axes, self._prefill.rows)
        self.last_unit = (launched, time.monotonic())
        # Media span fewer positions than tokens: what follows counts on from the largest one so far.
        largest = max(lane.frontier + lane.shift, int(axes.max()) + 1)
        lane.frontier += len(tokens)
        lane.shift = largest - lane.frontier
        return row

    def first(self, lane: Lane, row: npt.NDArray[np.float32], sampler: Sampler) -> int:
        """The token after a finished prefill whose last residual row is ``row``."""
        self._table.wiring.hidden.array[0] = row
        self._set_sampler(0, sampler, lane.frontier)
        launched = time.monotonic()
        self._runner.run(self._table.head[0], self._table.finish[1], 1, 0)
        drawn = int(self._table.drawn[0])
        self.last_unit = (launched, time.monotonic())
        return drawn

    def round(self, rows: Sequence[Row]) -> list[int]:
        """One decode round: take in each row's token, draw each row's next.

        A drawn value below 0 is no token: ``check_drawn`` says what it means for its row.
        """
        assert 0 < len(rows) <= self.options.columns
        columns, blocks, samplers = [], [], []
        for index, row in enumerate(rows):
            lane = row.lane
            place = lane.frontier
            axis = place + lane.shift
            columns.append((row.token, place, axis, axis, axis, lane.table_address, lane.kept))
            blocks.append((index, 1, self.states.address(lane.slot), 1))
            samplers.append(row.sampler.at(place + 1))
        runner, count = self._runner, len(rows)  # three assignments: each costs as much as a row's
        runner.rows[:count], runner.blocks[:count], runner.samplers[:count] = columns, blocks, samplers
        launched = time.monotonic()
        # Both halves in one call: nothing is masked between them.
        runner.run(*self._table.round, count, count)
        drawn: list[int] = self._table.drawn[:count].tolist()
        self.last_unit = (launched, time.monotonic())
        for row in rows:
            row.lane.frontier += 1
        return drawn

    def verify(self, blocks: Sequence[Block]) -> list[Tokens]:
        """The target's draw after every column of some lanes, ``verified`` in all at most; then ``commit``.

        Errors: none of its own; a drawn value below 0 is no token.
        """
        launched = time.monotonic()
        drawn = self._verifier.run(blocks)
        self.last_unit = (launched, time.monotonic())
        return drawn

    def commit(self, blocks: Sequence[Block], counts: Sequence[int]) -> None:
        """Take in the first ``counts`` columns of the blocks just verified, bit for bit as single steps."""
        self._verifier.commit(blocks, counts)

    def logits(self, rows: int) -> npt.NDArray[np.float32]:
        """The last Forward's logits [rows, vocabulary] (tests and scoring)."""
        return self._table.logits.array[:rows, : self.config.vocab]

    def _set_sampler(self, index: int, sampler: Sampler, position: int) -> None:
        self._runner.samplers[index] = sampler.at(position)

    def warm_up(self) -> None:
        """Compile what this model's rounds call and no cache holds, by running nothing."""
        self._runner.warm_up(self._stored, None if self.pages is None else self.pages.format)

    def check_integrity(self, cached_pages: int = 0, cached_slots: int = 0) -> None:
        """At idle: every page and slot that no cache keeps is free, once."""
        self.memory.check_idle(cached_pages, cached_slots)

    def close(self) -> None:
        """End the helper threads."""
        self._runner.close()


def check_drawn(token: int) -> int:
    """A drawn token, or the row's failure.

    Errors: ``EngineError`` ``internal_error`` for logits that are no numbers and for an empty mask.
    """
    if token == NOT_A_NUMBER:
        raise EngineError("internal_error", "the model returned a logit that is not a number")
    if token == DEAD_END:
        raise EngineError("internal_error", "no token may follow: every id is masked")
    return token
