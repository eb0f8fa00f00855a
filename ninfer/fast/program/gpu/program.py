"""The program of a model on a GPU: what the worker sees, as ``ninfer.fast.program.program`` on CPUs.

Owns every lane's memory on the device and the calls that compute. A round is two graphs, which read and write
memory of the host themselves, and one wait; nothing else waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ninfer.fast.memory.lanes import Lane, LaneMemory, pages_for
from ninfer.fast.memory.pages import PageOwners
from ninfer.fast.memory.states import StateImages
from ninfer.fast.ops.attention.encodings import BF16, encoding
from ninfer.fast.ops.control import MAX_COLUMNS
from ninfer.fast.program.gpu.buffers import RoundBuffers, Sizes
from ninfer.fast.program.gpu.chunk import Chunk, Prefill
from ninfer.fast.program.gpu.control import Control, ControlSizes
from ninfer.fast.program.gpu.device import Waiter, architecture, free_bytes
from ninfer.fast.program.gpu.forward import Forward
from ninfer.fast.program.gpu.graphs import Graphs, allowance
from ninfer.fast.program.gpu.memory import GpuPages, GpuStates, mtp_layer, page_bytes
from ninfer.fast.program.gpu.mtp import Drafts, PairBuffers, Pairs
from ninfer.fast.program.gpu.mtp_lanes import GpuMtpLanes
from ninfer.fast.program.gpu.mtp_weights import MtpModel
from ninfer.fast.program.gpu.parameters import TextModel, memory_of
from ninfer.fast.program.gpu.rehearsal import rehearse
from ninfer.fast.program.gpu.samplers import Samplers
from ninfer.fast.program.gpu.shapes import Families, Shape
from ninfer.fast.program.gpu.sizing import Sizing
from ninfer.fast.program.gpu.tiles import TileTable
from ninfer.fast.program.gpu.verify import Verifier
from ninfer.model.config import TextConfig

if TYPE_CHECKING:
    from ninfer.fast.program.verify import Block

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """Sizes fixed at start-up. ``pages`` None: as many as leave ``headroom`` bytes of the device free.

    ``snapshot_slots`` state images lie beyond those of the lanes. ``columns`` is the widest round at least;
    ``records`` keeps what verification needs, as do ``widths`` of verification blocks, which get graphs of
    their own. ``activations`` is bf16 but in the interpreter.
    """

    lanes: int
    max_context: int
    pages: int | None
    kv_format: str
    prefill_chunk: int
    vocabulary: int
    snapshot_slots: int = 0
    headroom: int = 1 << 30
    columns: int = 16
    graphs: bool = True
    records: bool = False
    widths: tuple[int, ...] = ()
    deterministic: bool = False
    sync: str = "spin"
    activations: torch.dtype = torch.bfloat16
    mtp: bool = False
    threads: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Ledger:
    """Device memory by owner, in bytes."""

    weights: int
    states: int
    kv: int
    workspace: int
    graph_allowance: int
    graphs: int = field(default=0)

    @property
    def total(self) -> int:
        return self.weights + self.states + self.kv + self.workspace + self.graph_allowance


class GpuProgram:
    """A loaded text model with its memory on ``device``. Not thread-safe: one worker owns it.

    ``last_unit``: when the last call was launched and ended, in seconds of one clock.
    """

    def __init__(
        self,
        model: TextModel,
        config: TextConfig,
        options: GpuOptions,
        device: torch.device,
        head: MtpModel | None = None,
    ) -> None:
        assert options.mtp == (head is not None)
        self.config, self.device, self._model, self._head = config, device, model, head
        tiles = TileTable(architecture(device), options.deterministic)
        # Keys of 16 bits are met by queries of the activation type, codes by fp16.
        query = options.activations
        attention = [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"]
        if options.mtp:
            attention.append(mtp_layer(config))
        if config.attention is not None:
            key = encoding(options.kv_format, "key", config.attention.head_dim)
            if key.number != BF16 and options.activations == torch.bfloat16:
                query = torch.float16
        self.states = GpuStates(config, options.lanes + options.snapshot_slots, device)
        self._families = Families(options.lanes, options.widths)
        rows = max(options.columns, self._families.rows)
        # Drafts may lie a page beyond the last context.
        table_pages = pages_for(options.max_context) + options.mtp
        control = ControlSizes(rows, options.lanes, table_pages, config.vocab)
        self._waiter = Waiter(device, options.sync)
        self._control = Control(control, device, self._waiter)
        self._samplers = Samplers(self._control)
        sizes = Sizes(rows, parts=16, small_parts=16, vocabulary=options.vocabulary)
        self._buffers = RoundBuffers(config, sizes, options.activations, query, device)
        # The pages come last: their number is what is left.
        self.pages: GpuPages | None = None
        self._forward = Forward(
            config, model, self.states, None, self._buffers, self._control, tiles,
            options.records or bool(options.widths), options.mtp,
        )  # fmt: skip
        self._prefill = Prefill(
            config, model, self._forward, None, self._control.tables, tiles, options.prefill_chunk,
            options.activations, query, device,
        )  # fmt: skip
        self._graphs = Graphs(device, options.graphs)
        self.mtp: GpuMtpLanes | None = None
        if head is not None:
            pair_buffers = PairBuffers(
                config, replace(sizes, rows=MAX_COLUMNS), options.activations, query, device
            )  # fmt: skip
            pair_control, own = (
                Control(replace(control, rows=count), device, self._waiter, self._control)
                for count in (MAX_COLUMNS, rows)
            )
            parts = (config, head, model, self.states)
            self.mtp = GpuMtpLanes(
                Pairs(
                    *parts, pair_buffers, pair_control, tiles, self._buffers.hidden, self._prefill.hidden,
                    self._waiter,
                ),
                Drafts(*parts, self._buffers, own, tiles),
                self._graphs, self._control, pair_control, own, self._samplers, self.states, self._waiter,
            )  # fmt: skip
        executables = self._families.graphs(head is not None)
        self.graph_allowance = allowance(executables if self._graphs.enabled else 0)
        self.sizing: Sizing | None = None
        pages = options.pages
        if pages is None:
            # One page serves a rehearsal, after which everything else that takes memory has taken it.
            self._take_pages(1, options, attention)
            self._rehearse(options)
            self._waiter.wait()
            per_page = page_bytes(config, options.kv_format, options.mtp)
            self.sizing = Sizing(free_bytes(device), options.headroom, self.graph_allowance, per_page)
            pages = self.sizing.pages if per_page else pages_for(options.max_context) * options.lanes
        self._take_pages(pages, options, attention)
        owners = PageOwners(pages) if self.pages is None else self.pages
        self.memory = LaneMemory(cast(StateImages, self.states), owners, options.max_context)
        self.options = replace(options, pages=pages)
        self._verifier = Verifier(
            self._forward, self._graphs, self._control, self._samplers, self._families, self._finish
        )
        self.last_unit = (0.0, 0.0)

    def _take_pages(self, pages: int, options: GpuOptions, layers: list[int]) -> None:
        config = self.config.attention
        if config is None:
            return
        self.pages = GpuPages(config, layers, pages, options.kv_format, self.device)
        self._forward.set_pages(self.pages)
        self._prefill.set_pages(self.pages)
        self._prefill.expand_pages(pages_for(options.max_context))
        self._control.set_scratch(self.pages.scratch)
        if self.mtp is not None:
            self.mtp.set_pages(self.pages)

    def _rehearse(self, options: GpuOptions) -> None:
        rehearse(self._forward, self._prefill, self._control, self._families, options)
        if self.mtp is not None:
            self.mtp.rehearse(options.lanes, capture=False)

    @property
    def ledger(self) -> Ledger:
        """What the program holds."""
        kv = 0
        if self.pages is not None:
            kv = self.pages.pages * page_bytes(self.config, self.options.kv_format, self.options.mtp)
        workspace = self._buffers.workspace.bytes + self._prefill.bytes + self._control.bytes
        if self.mtp is not None:
            workspace += self.mtp.bytes
        weights = self._model.bytes if self._head is None else memory_of(self._model, self._head)
        states = self.states.slots * self.states.image_bytes
        return Ledger(weights, states, kv, workspace, self.graph_allowance, self._graphs.measured_bytes)

    # --- lanes -------------------------------------------------------------------------------------

    @property
    def free_pages(self) -> int:
        return self.memory.free_pages

    @property
    def workspace_bytes(self) -> int:
        return self.ledger.workspace

    def open_lane(self, ceiling: int = 0) -> Lane:
        """A zeroed state image and pages for ``ceiling`` tokens; ``memory`` adds more."""
        return self.memory.open(ceiling)

    def close_lane(self, lane: Lane) -> None:
        """Give a lane's memory back."""
        self._control.release(lane)
        self.memory.close(lane)

    # --- computing ---------------------------------------------------------------------------------

    def prefill(self, lane: Lane, tokens: Tokens, axes: Tokens) -> Tensor:
        """Take a chunk of at most ``prefill_chunk`` tokens; the residual row of its last one, on the device.

        Shapes: ``tokens`` [T] int32, ``axes`` [3, T] int32.
        """
        assert 0 < len(tokens) <= self.options.prefill_chunk
        launched = time.monotonic()
        table = self._control.prompts
        pages = pages_for(lane.frontier + len(tokens))
        self._control.set_table(table, lane.block_table, pages, len(lane.pages))
        self._control.tell_tables()
        row = self._prefill.run(Chunk(tokens, axes, lane.frontier, table, lane.slot))
        if self.mtp is not None:
            self.mtp.prefilled(lane, lane.frontier, tokens, axes)
        self._waiter.wait()
        self.last_unit = (launched, time.monotonic())
        # Media span fewer positions than tokens: what follows counts on from the largest one so far.
        largest = max(lane.frontier + lane.shift, int(axes.max()) + 1)
        lane.frontier += len(tokens)
        lane.shift = largest - lane.frontier
        return row

    def first(self, lane: Lane, row: Tensor, sampler: Any) -> int:
        """The token after a finished prefill whose last residual row is ``row``."""
        launched = time.monotonic()
        self._take_pairs()
        self._buffers.hidden[0].copy_(row)
        self._control.begin()
        self._samplers.step(0, self._control.prompts, sampler, lane.frontier, -1)
        self._control.send()
        self._graphs.run(("head", 1), partial(self._forward.head, 1))
        drawn = int(self._finish(1)[0])
        self.last_unit = (launched, time.monotonic())
        return drawn

    def round(self, rows: Sequence[Any]) -> list[int]:
        """One decode round: take in each row's token, draw each row's next.

        A drawn value below 0 is no token. ``rows``: lane, token and sampler of each.
        """
        count = len(rows)
        assert 0 < count <= len(self._control.host_rows)
        self._take_pairs()
        self._control.begin()
        host_rows, host_blocks = self._control.host_rows, self._control.host_blocks
        for index, row in enumerate(rows):
            lane = row.lane
            place, axis = lane.frontier, lane.frontier + lane.shift
            table = self._control.table_of(lane)
            host_rows[index] = (row.token, place, axis, axis, axis, table, index, place)
            host_blocks[index] = (index, 1, lane.slot, 1, place, table, 0, 0)
            self._control.set_table(table, lane.block_table, pages_for(place + 1), len(lane.pages))
            self._samplers.step(index, table, row.sampler, place + 1, row.token)
        launched = time.monotonic()
        self._control.send()
        shape = Shape(count, count)
        self._graphs.run(("forward", shape), partial(self._forward.forward, shape))
        drawn: list[int] = self._finish(count).tolist()
        self.last_unit = (launched, time.monotonic())
        for row in rows:
            row.lane.frontier += 1
        return drawn

    def verify(self, blocks: Sequence[Block]) -> list[Tokens]:
        """The target's draw after every column of some lanes, at most 64 columns in all; then ``commit``.

        Errors: none of its own; a drawn value below 0 is no token.
        """
        launched = time.monotonic()
        self._take_pairs()
        drawn = self._verifier.run(blocks)
        self.last_unit = (launched, time.monotonic())
        return drawn

    def commit(self, blocks: Sequence[Block], counts: Sequence[int]) -> None:
        """Take in the first ``counts`` columns of the blocks just verified, bit for bit as single steps."""
        self._verifier.commit(blocks, counts)

    def _take_pairs(self) -> None:
        """What the head is to know of the last Forward's rows, which the next one overwrites."""
        if self.mtp is not None:
            self.mtp.flush()

    def logits(self, rows: int) -> npt.NDArray[np.float32]:
        """The last Forward's logits [rows, vocabulary] (tests and scoring)."""
        logits: npt.NDArray[np.float32] = self._buffers.logits[0, :rows].cpu().clone().numpy()
        return logits

    def _finish(self, rows: int, launched: int = 0) -> Tokens:
        """The draws of ``rows`` of the ``launched`` rows (0: of all)."""
        launched = launched or rows
        self._graphs.run(("finish", launched), partial(self._forward.finish, launched))
        self._waiter.wait()
        return self._buffers.told.array[:rows].copy()

    def dry_wide(self) -> None:
        """Launch a wide verification and its fold over whatever the control tables hold (compile checks)."""
        rows = len(self._control.host_rows)
        self._forward.forward(Shape(rows, 1, rows))
        self._forward.fold(1)

    def time_verify(self, lane: Lane, columns: int, context: int, rounds: int) -> float:
        """Median seconds of verifying a block of ``columns`` at ``context`` and folding it (benchmarks)."""
        c = self._control
        c.begin()
        for index in range(columns):
            place = context + index
            c.host_rows[index] = (7, place, place, place, place, 0, 0, context)
            c.host_numbers[index], c.host_words[index, :5] = 0, (1, place + 1, -1, -1, -1)
        c.host_blocks[0] = (0, columns, lane.slot, 0, context, 0, 0, 0)
        pages = pages_for(context + columns)
        c.set_table(0, lane.block_table, pages, pages)
        c.folded.fill()[0] = c.host_blocks[0]
        shape = Shape(columns, 1, columns)
        steps = (
            (("forward", columns, 1), partial(self._forward.forward, shape)),
            (("finish", columns), partial(self._forward.finish, columns)),
            (("fold", 1), partial(self._forward.fold, 1)),
        )
        c.send()
        for _, launch in steps:
            launch()
        times = []
        for index in range(rounds + 2):
            began = time.monotonic()
            c.send()
            c.folded.sent()
            for key, launch in steps:
                self._graphs.run(key, launch)
            self._waiter.wait()
            if index >= 2:
                times.append(time.monotonic() - began)
        return sorted(times)[len(times) // 2]

    def warm_up(self) -> None:
        """Compile every kernel of a prefill and of rounds, and capture the rounds' graphs."""
        self._rehearse(self.options)
        shapes = self._families.shapes()
        for shape in shapes:
            self._graphs.run(("forward", shape), partial(self._forward.forward, shape))
        for rows in sorted({shape.rows for shape in shapes}):
            self._graphs.run(("finish", rows), partial(self._forward.finish, rows))
        for blocks in self._families.folds:
            self._graphs.run(("fold", blocks), partial(self._forward.fold, blocks))
        self._graphs.run(("head", 1), partial(self._forward.head, 1))
        if self.mtp is not None:
            self.mtp.rehearse(self.options.lanes, capture=True)
        # A capture makes the allocator give its cache back; serving would take it again later.
        self._rehearse(self.options)
        self._waiter.wait()

    def check_integrity(self, cached_pages: int = 0, cached_slots: int = 0) -> None:
        """At idle: every page and slot that no cache keeps is free, once."""
        self.memory.check_idle(cached_pages, cached_slots)

    def close(self) -> None:
        """Nothing runs on without calls; memory goes with the object."""
