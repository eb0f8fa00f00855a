"""A round's launches in order: Forward to float32 logits, Finish to tokens, fold after verifying.

Owns the order only; the same calls run eagerly, under capture, and in Triton's interpreter. What a call
computes depends on the control tables, so a captured round serves every context.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ninfer.fast.ops.attention import gpu as attention
from ninfer.fast.ops.linear.gpu import SWIGLU, Tile, embed, linear
from ninfer.fast.ops.linear.packing import Packed
from ninfer.fast.ops.moe import gpu as moe
from ninfer.fast.ops.rms_norm.gpu import Sums, combine
from ninfer.fast.ops.rows.gpu import keep_last
from ninfer.fast.ops.select import gpu as select
from ninfer.fast.program.gpu.buffers import RoundBuffers
from ninfer.fast.program.gpu.control import Control
from ninfer.fast.program.gpu.delta_nets import DeltaNets
from ninfer.fast.program.gpu.memory import GpuPages, GpuStates
from ninfer.fast.program.gpu.parameters import AttentionPart, Layer, MixturePart, TextModel
from ninfer.fast.program.gpu.shapes import Shape
from ninfer.fast.program.gpu.tiles import TileTable
from ninfer.fast.program.gpu.weights import Projection
from ninfer.model.config import AttentionConfig, TextConfig, rotary_axis


@dataclass(slots=True, eq=False)
class Pending:
    """What the next norm adds to the residual stream first."""

    sums: Sums | None = None
    shared: Tensor | None = None
    score: Tensor | None = None


class Rotary:
    """Frequencies and axes of the rotated pairs of one attention geometry."""

    def __init__(self, config: AttentionConfig, device: torch.device) -> None:
        exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim
        self.frequencies = (1 / torch.tensor(config.rope.theta, dtype=torch.float32) ** exponents).to(device)
        axes = [rotary_axis(pair, config.rope.mrope_section) for pair in range(config.rotary_dim // 2)]
        self.axes = torch.tensor(axes, dtype=torch.int32, device=device)


class Forward:
    """The launches of one model over its buffers.

    ``records``: keep what ``fold`` replays, per layer. ``keeps``: each lane's last row stays in its image.
    """

    def __init__(
        self,
        config: TextConfig,
        model: TextModel,
        states: GpuStates,
        pages: GpuPages | None,
        buffers: RoundBuffers,
        control: Control,
        tiles: TileTable,
        records: bool,
        keeps: bool = False,
    ) -> None:
        self._config, self._model, self._keeps = config, model, keeps
        self.states, self._pages = states, pages
        self._buffers, self._control, self._tiles = buffers, control, tiles
        device = buffers.workspace.device
        self._rotary = None if config.attention is None else Rotary(config.attention, device)
        self._activations = buffers.normed.dtype
        self._delta_nets = DeltaNets(config, model, states, buffers, tiles, records)

    def set_pages(self, pages: GpuPages) -> None:
        """The pools, which are sized last."""
        self._pages = pages

    # --- descriptions of layers ----------------------------------------------------------------------

    def heads(self, part: AttentionPart, projected: Tensor) -> attention.Heads:
        """One attention layer over ``projected`` rows."""
        config, at = self._config.attention, part.inputs.at
        assert config is not None
        assert self._rotary is not None
        return attention.Heads(
            projected, at["query"], at["gate"], at["key"], at["value"], part.query_norm, part.key_norm,
            self._rotary.frequencies, self._rotary.axes, config.query_heads, config.kv_heads, config.head_dim,
            self._config.rms_eps,
        )  # fmt: skip

    # --- Forward -----------------------------------------------------------------------------------

    def forward(self, shape: Shape) -> None:
        """Take in the rows that were sent; their logits."""
        b = self._buffers
        self._control.arrive()
        embed(self._control.rows[:, 0], self._model.embedding, b.hidden, shape.rows)
        pending = Pending()
        for index, layer in enumerate(self._model.layers):
            self._norm(pending, layer.input_norm, shape.rows)
            mixed = self._mixer(index, layer, shape)
            output = layer.attention.output if layer.attention is not None else self._gdn_output(layer)
            pending = Pending(self._multiply(mixed, output, b.sums, shape.rows))
            self._norm(pending, layer.post_norm, shape.rows)
            pending = self._feed_forward(layer, shape.rows)
        self._head(pending, shape.rows)
        self._keep_last(shape.blocks)

    def _keep_last(self, blocks: int) -> None:
        if self._keeps:
            images, at = self.states.images, self.states.hidden_at
            keep_last(self._buffers.hidden, images, at, self._control.blocks, blocks)

    def head(self, rows: int) -> None:
        """The logits of residual rows that lie in ``hidden`` already (after prefill); samplers were sent."""
        self._control.arrive()
        self._head(Pending(), rows)

    def _head(self, pending: Pending, rows: int) -> None:
        self._norm(pending, self._model.final_norm, rows)
        tile = self._tiles.tile(self._model.head, "head")
        linear(self._buffers.normed, self._model.head, self._buffers.logits, replace(tile, parts=1), rows)

    def _norm(self, pending: Pending, weight: Tensor, rows: int) -> None:
        b, eps = self._buffers, self._config.rms_eps
        combine(b.hidden, pending.sums, pending.shared, pending.score, weight, b.normed, eps, rows)

    def _multiply(self, x: Tensor, matrix: Packed, y: Tensor, rows: int) -> Sums:
        """A product in parts."""
        tile = self._tiles.tile(matrix)
        parts = y[: tile.parts]
        linear(x, matrix, parts, tile, rows)
        return Sums(parts)

    def _project(self, projection: Projection, y: Tensor, rows: int) -> None:
        """Matrices side by side, each whole."""
        for matrix, begin in projection.parts:
            tile = replace(self._tiles.tile(matrix, "wide"), parts=1)
            linear(self._buffers.normed, matrix, y[None, :, begin:], tile, rows)

    @staticmethod
    def _gdn_output(layer: Layer) -> Packed:
        assert layer.gdn is not None
        return layer.gdn.output

    def _mixer(self, index: int, layer: Layer, shape: Shape) -> Tensor:
        if layer.attention is not None:
            return self._attention(index, layer.attention, shape)
        assert layer.gdn is not None
        part, net = layer.gdn, self._delta_nets.nets[index]
        self._project(part.inputs, net.projected, shape.rows)
        if part.gates is not None:
            (matrix, _), *others = part.gates.parts
            assert not others, "a and b have one format"
            linear(self._buffers.normed, matrix, net.gates, self._tiles.tile(matrix), shape.rows)
        mixed = self._buffers.mixed
        self._delta_nets.delta(index, self._control.blocks, mixed, shape.blocks)
        return mixed

    def _append(self, index: int, part: AttentionPart, rows: int) -> attention.Heads:
        """Keys and values of normed rows into their lanes' pages."""
        b, control = self._buffers, self._control
        assert self._pages is not None
        projected = b.projected(part.inputs.columns)
        self._project(part.inputs, projected, rows)
        heads = self.heads(part, projected)
        attention.append(heads, self._pages.layers[index], control.rows, control.tables, b.query, rows)
        return heads

    def _attention(self, index: int, part: AttentionPart, shape: Shape) -> Tensor:
        b, control = self._buffers, self._control
        heads = self._append(index, part, shape.rows)
        assert self._pages is not None
        pool = self._pages.layers[index]
        attention.attend(
            b.query, pool, control.blocks, control.tables, b.split_sums, b.split_states, shape.blocks,
            shape.widest, self._activations,
        )  # fmt: skip
        attention.merge(
            b.split_sums, b.split_states, control.rows, heads, pool.value.rotated, b.attended, shape.rows
        )
        return b.attended

    def _feed_forward(self, layer: Layer, rows: int) -> Pending:
        b = self._buffers
        if layer.dense is not None:
            self._swiglu(layer.dense.inputs, b.product, rows)
            return Pending(self._multiply(b.product, layer.dense.output, b.sums, rows))
        assert layer.mixture is not None
        return self._mixture(layer.mixture, rows)

    def _swiglu(self, matrix: Packed, product: Tensor, rows: int) -> None:
        tile = self._tiles.tile(matrix, "wide" if matrix.rows >= 8192 else "gated")
        linear(self._buffers.normed, matrix, product, replace(tile, parts=1), rows, SWIGLU)

    def _mixture(self, part: MixturePart, rows: int) -> Pending:
        b, config = self._buffers, self._config.moe
        assert config is not None
        tile = self._small(part.router)
        router = b.router[: tile.parts]
        for matrix, begin in part.router.parts:
            linear(b.normed, matrix, router[:, :, begin:], tile, rows)
        moe.route(router, b.choice, b.strengths, config.experts, rows)
        moe.expand(
            b.normed,
            b.choice,
            part.inputs,
            b.products,
            self._tiles.tile(part.inputs.matrix, "expert_in"),
            rows,
        )
        self._swiglu(part.shared.inputs, b.shared_product, rows)
        shared = self._multiply(b.shared_product, part.shared.output, b.shared_sums, rows)
        moe.contract(
            b.products, b.choice, part.outputs, b.expert_sums.view(-1, self._config.hidden),
            self._tiles.tile(part.outputs.matrix, "expert_out"), rows,
        )  # fmt: skip
        sums = Sums(b.expert_sums.transpose(0, 1), b.strengths)
        return Pending(sums, shared.parts, router[:, :, config.experts])

    def _small(self, projection: Projection) -> Tile:
        """One tile for all matrices of a projection in parts: their parts must agree."""
        tiles = [self._tiles.tile(matrix, "small") for matrix, _ in projection.parts]
        return replace(tiles[0], parts=min(tile.parts for tile in tiles))

    # --- Finish and fold -----------------------------------------------------------------------------

    def finish(self, rows: int) -> None:
        """Draw from the logits of the first rows, and tell the host.

        A column's drafts are the tokens of the rows before it.
        """
        b, c = self._buffers, self._control
        width = c.rows.stride(0)
        select.select(
            b.logits[0],
            c.numbers,
            c.words,
            c.counts,
            c.masks,
            b.sizes.vocabulary,
            b.best,
            b.flags,
            b.told.memory,
            rows,
            select.Earlier(c.rows, width, -width),
        )

    def fold(self, blocks: int) -> None:
        """Commit the first COLUMNS columns of blocks that were only verified; needs ``records``.

        The blocks are those of ``folded``, which was sent.
        """
        self._control.folded.carry(blocks)
        self._delta_nets.fold(self._control.blocks, blocks)
        self._keep_last(blocks)
