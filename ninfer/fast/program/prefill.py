"""Prefill: a chunk of one prompt through the text model, matrices by the platform's GEMM on decoded tiles.

Everything but the matrix products, the chunk's attention and the chunked delta rule runs the round's own
operations over a workspace of chunk rows. One request at a time; the chunk's keys go to the lane's pages and
its state to the lane's image, so that decoding goes on where the chunk ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ninfer.fast.memory.pages import PagePool
from ninfer.fast.memory.states import StateImages
from ninfer.fast.ops.control import BLOCK_FIELDS, ROW_FIELDS
from ninfer.fast.ops.embedding import contract as embedding
from ninfer.fast.ops.gdn import solve
from ninfer.fast.ops.linear import formats
from ninfer.fast.program import table as t
from ninfer.fast.program.chunk_attention import attend_chunk
from ninfer.fast.program.chunk_delta import ChunkRows, delta_chunk
from ninfer.fast.program.parameters import (
    AttentionWeights,
    ExpertWeights,
    GatedMatrices,
    GdnWeights,
    LayerWeights,
    TextWeights,
)
from ninfer.fast.program.round import RoundRunner
from ninfer.fast.program.weights import Matrix, Segment
from ninfer.fast.program.wiring import Pair, Wiring
from ninfer.fast.program.workspace import Buffer
from ninfer.model.config import AttentionConfig, GdnConfig, MoeConfig, TextConfig

# Bytes of decoded float32 weights that one product reads: they should still be in cache when it starts.
TILE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Part of one prompt. Shapes: ``tokens`` [T], ``axes`` [3, T]; ``start`` is the place of the first token.

    ``block_table`` lists the lane's pages, ``slot`` is its state image.
    """

    tokens: npt.NDArray[np.int32]
    axes: npt.NDArray[np.int32]
    start: int
    block_table: npt.NDArray[np.int32]
    slot: int


class PrefillTable:
    """The chunk's operations, appended to the model's one table; ranges by layer."""

    def __init__(self, builder: t.TableBuilder, wiring: Wiring, weights: TextWeights) -> None:
        self._builder, self._wiring = builder, wiring
        config = wiring.config
        self.normed = wiring.pair("normed", config.hidden)
        begin = builder.length
        builder.add(t.EMBED, wiring.embed(weights.embedding))
        if config.attention is not None:
            builder.add(t.ROTARY, wiring.rotary(config.attention))
        self.embed = (begin, builder.length)
        self.input_norms = [self._one(t.NORM, wiring.norm(w.input_norm, self.normed)) for w in weights.layers]
        self.post_norms = [
            self._one(t.NORM, wiring.norm(w.post_attention_norm, self.normed)) for w in weights.layers
        ]
        self.mixers = [self._mixer(layer, w) for layer, w in enumerate(weights.layers)]
        self.products: dict[str, tuple[int, int]] = {}
        self.routes: dict[int, tuple[int, int]] = {}
        for layer, layer_weights in enumerate(weights.layers):
            self._feed_forward(layer, layer_weights)
        self.decode = self._one(t.DECODE, (0,) * embedding.FIELDS)
        self.solve = self._one(t.SOLVE, (0,) * solve.FIELDS)

    def _one(self, opcode: int, descriptor: tuple[int, ...]) -> tuple[int, int]:
        self._builder.add(opcode, descriptor)
        return self._builder.length - 1, self._builder.length

    def _mixer(self, layer: int, weights: LayerWeights) -> tuple[int, int]:
        config = self._wiring.config
        if weights.attention is not None:
            assert config.attention is not None
            return self._one(t.APPEND, self._wiring.attention(layer, weights.attention, config.attention))
        assert weights.gdn is not None
        assert config.gdn is not None
        return self._one(t.CONVOLVE, self._wiring.delta_net(layer, weights.gdn, config.gdn, ""))

    def _feed_forward(self, layer: int, weights: LayerWeights) -> None:
        if weights.experts is None:
            assert weights.mlp is not None
            names = {"mlp": weights.mlp.gate.rows}
        else:
            assert self._wiring.config.moe is not None
            names = {"shared_mlp": weights.experts.shared.gate.rows}
            descriptor = self._wiring.experts(layer, weights.experts, self._wiring.config.moe, self.normed)
            self.routes[layer] = self._one(t.ROUTE, descriptor)
        for name, width in names.items():
            if name not in self.products:
                self.products[name] = self._one(t.SWIGLU, self._wiring.swiglu(name, width))


class Prefill:
    """Runs chunks of at most ``wiring.rows`` tokens."""

    def __init__(
        self,
        config: TextConfig,
        weights: TextWeights,
        states: StateImages,
        pages: PagePool | None,
        wiring: Wiring,
        table: PrefillTable,
        runner: RoundRunner,
        activations: str = "float32",
    ) -> None:
        self._bf16 = activations == "bf16"
        self._config, self._weights = config, weights
        self._states, self._pages = states, pages
        self._wiring, self._table, self._runner = wiring, table, runner
        widest = max(matrix.width for matrix in _matrices(weights))
        self._tile = torch.zeros(max(TILE_BYTES // 4, 64 * widest))

    @torch.inference_mode()
    def run(self, chunk: Chunk) -> npt.NDArray[np.float32]:
        """Advance the lane by the chunk; the residual row [hidden] of its last token."""
        count = len(chunk.tokens)
        self._control(chunk)
        self._runner.run(*self._table.embed, count, 1)
        for layer, weights in enumerate(self._weights.layers):
            self._runner.run(*self._table.input_norms[layer], count, 1)
            if weights.attention is not None:
                self._attention(layer, weights.attention, chunk)
            else:
                assert weights.gdn is not None
                self._delta_net(layer, weights.gdn, chunk)
            self._runner.run(*self._table.post_norms[layer], count, 1)
            if weights.experts is None:
                assert weights.mlp is not None
                product = self._gated("mlp", weights.mlp, count)
                self._multiply(weights.mlp.down, product, self._wiring.hidden, count, add=True)
            else:
                self._mixture(layer, weights.experts, count)
        row: npt.NDArray[np.float32] = self._wiring.hidden.array[count - 1]
        return row

    def _control(self, chunk: Chunk) -> None:
        count = len(chunk.tokens)
        rows, blocks = self._runner.rows, self._runner.blocks
        rows[:count, 0] = chunk.tokens
        rows[:count, 1] = np.arange(chunk.start, chunk.start + count)
        rows[:count, 2:5] = chunk.axes.T
        rows[:count, 5] = chunk.block_table.ctypes.data
        blocks[0] = (0, count, self._states.address(chunk.slot), 1)
        assert (rows.shape[1], blocks.shape[1]) == (ROW_FIELDS, BLOCK_FIELDS)

    # --- matrix products ---------------------------------------------------------------------------

    def _multiply(
        self, matrix: Matrix, x: Pair, y: Buffer, count: int, offset: int = 0, add: bool = False
    ) -> None:
        """y[:, offset:] = x Wᵀ, or += it."""
        source = torch.from_numpy(x.natural.array[:count, : matrix.width])
        target = torch.from_numpy(y.array[:count])
        if self._bf16:
            source = source.bfloat16()
        for segment in matrix.segments:
            for begin in range(0, segment.rows, self._tile_rows(matrix)):
                rows = min(segment.rows - begin, self._tile_rows(matrix))
                part = target[:, offset : offset + rows]
                if self._bf16:
                    product = source @ self._bf16_tile(segment, begin, rows, matrix.width).T
                    part.add_(product) if add else part.copy_(product)
                elif add:
                    part.addmm_(source, self._decoded(segment, begin, rows, matrix.width).T)
                else:
                    torch.mm(source, self._decoded(segment, begin, rows, matrix.width).T, out=part)
                offset += rows

    def _tile_rows(self, matrix: Matrix) -> int:
        return max(64, self._tile.numel() // matrix.width // 64 * 64)

    def _decoded(self, segment: Segment, begin: int, rows: int, width: int) -> Tensor:
        """Rows ``begin..begin + rows`` of a segment as float32 [rows, width]."""
        index = self._table.decode[0]
        descriptor = self._runner.descriptors[index]
        descriptor[: embedding.FIELDS] = (
            *(segment.format, width),
            *(segment.base + begin * segment.base_stride, segment.base_stride),
            *(segment.high + begin * segment.high_stride, segment.high_stride),
            *(segment.scale + begin * segment.scale_stride, segment.scale_stride),
            *(self._tile.data_ptr(), 4 * width),
        )
        self._runner.run(*self._table.decode, rows, 0)
        return self._tile[: rows * width].view(rows, width)

    def _bf16_tile(self, segment: Segment, begin: int, rows: int, width: int) -> Tensor:
        """Rows of a segment as bfloat16: the stored words themselves where they are that already."""
        if segment.format == formats.BF16:
            words = segment.keep[0]
            first = (segment.base - words.ctypes.data) // segment.base_stride + begin
            return torch.from_numpy(words[first : first + rows].view(np.int16)).view(torch.bfloat16)
        return self._decoded(segment, begin, rows, width).bfloat16()

    def _gated(self, name: str, matrices: GatedMatrices, count: int) -> Pair:
        """SiLU(gate x) ⊙ up x of the normed rows."""
        for part, matrix in (("gate", matrices.gate), ("up", matrices.up)):
            buffer = self._wiring.workspace.buffer(f"{name}_{part}", matrix.rows)
            self._multiply(matrix, self._table.normed, buffer, count)
        self._runner.run(*self._table.products[name], count, 1)
        return self._wiring.pair(f"{name}_product", matrices.gate.rows)

    # --- mixers ------------------------------------------------------------------------------------

    def _attention(self, layer: int, weights: AttentionWeights, chunk: Chunk) -> None:
        config, count = self._config.attention, len(chunk.tokens)
        assert isinstance(config, AttentionConfig)
        assert self._pages is not None
        matrices = {"query": weights.query, "gate": weights.gate, "key": weights.key, "value": weights.value}
        buffers = {name: self._wiring.workspace.buffer(name, m.rows) for name, m in matrices.items()}
        for name, matrix in matrices.items():
            self._multiply(matrix, self._table.normed, buffers[name], count)
        self._runner.run(*self._table.mixers[layer], count, 1)
        heads = (count, config.query_heads, config.head_dim)
        query, gate = (
            torch.from_numpy(buffers[name].array[:count, : config.query_heads * config.head_dim]).view(heads)
            for name in ("query", "gate")
        )
        attended = attend_chunk(query, self._pages, layer, chunk.block_table, chunk.start)
        output = self._wiring.pair("attended", weights.output.columns)
        result = torch.from_numpy(output.natural.array[:count, : weights.output.columns]).view(heads)
        torch.mul(attended, torch.sigmoid(gate), out=result)
        self._multiply(weights.output, output, self._wiring.hidden, count, add=True)

    def _delta_net(self, layer: int, weights: GdnWeights, chunk: Chunk) -> None:
        config, count = self._config.gdn, len(chunk.tokens)
        assert isinstance(config, GdnConfig)
        workspace, keys = self._wiring.workspace, weights.query.rows
        inputs = workspace.buffer("inputs", config.channels)
        for matrix, offset in ((weights.query, 0), (weights.key, keys), (weights.value, 2 * keys)):
            self._multiply(matrix, self._table.normed, inputs, count, offset)
        small = {"a": weights.a_projection, "b": weights.b_projection, "z": weights.z}
        for name, matrix in small.items():
            self._multiply(matrix, self._table.normed, workspace.buffer(name, matrix.rows), count)
        self._runner.run(*self._table.mixers[layer], count, 1)
        a, b, z, convolved = (
            torch.from_numpy(workspace.buffer(name, columns).array[:count, :columns])
            for name, columns in (
                ("a", config.value_heads),
                ("b", config.value_heads),
                ("z", config.value_heads * config.value_dim),
                ("convolved", config.channels),
            )
        )
        shape = (config.value_heads, config.key_dim, config.value_dim)
        state = torch.from_numpy(self._states.floats(chunk.slot, self._states.state_offsets[layer], shape))
        mixed = self._wiring.pair("mixed", weights.output.columns)
        result = torch.from_numpy(mixed.natural.array[:count, : weights.output.columns])
        rows = ChunkRows(convolved, a, b, z)
        eps = self._config.rms_eps
        result.copy_(delta_chunk(rows, weights, config, eps, state, chunk.start, self._solve))
        self._multiply(weights.output, mixed, self._wiring.hidden, count, add=True)

    def _solve(self, system: Tensor, right: Tensor) -> Tensor:
        """Unit lower triangular systems, in place of ``right``: [..., C, C], [..., C, width]."""
        system, right = system.contiguous(), right.contiguous()
        size, width = right.shape[-2:]
        count = right.numel() // (size * width)
        descriptor = self._runner.descriptors[self._table.solve[0]]
        descriptor[: solve.FIELDS] = (system.data_ptr(), right.data_ptr(), size, width, count)
        self._runner.run(*self._table.solve, 0, 0)
        return right

    # --- experts -----------------------------------------------------------------------------------

    def _mixture(self, layer: int, weights: ExpertWeights, count: int) -> None:
        config, workspace = self._config.moe, self._wiring.workspace
        assert isinstance(config, MoeConfig)
        score = workspace.buffer("shared_score", 1)
        self._multiply(weights.router, self._table.normed, workspace.buffer("router", config.experts), count)
        self._multiply(weights.shared_score, self._table.normed, score, count)
        self._runner.run(*self._table.routes[layer], count, 1)
        product = self._gated("shared_mlp", weights.shared, count)
        shared = workspace.buffer("shared", self._config.hidden)
        self._multiply(weights.shared.down, product, shared, count)
        rows = torch.from_numpy(self._table.normed.natural.array[:count])
        chosen = config.experts_per_token
        choice, strengths = (
            torch.from_numpy(self._wiring.array(name, 0, None)[: count * chosen]).view(count, chosen)
            for name in ("choice", "strengths")
        )
        total = torch.sigmoid(torch.from_numpy(score.array[:count, :1])) * torch.from_numpy(
            shared.array[:count]
        )
        for expert in sorted(set(choice.flatten().tolist())):
            which, rank = torch.nonzero(choice == expert, as_tuple=True)
            part = self._expert(weights.routed[expert], rows[which])
            total[:, : self._config.hidden].index_add_(0, which, part * strengths[which, rank, None])
        torch.from_numpy(self._wiring.hidden.array[:count]).add_(total)

    def _expert(self, matrices: GatedMatrices, x: Tensor) -> Tensor:
        """One routed expert over the rows that chose it: [rows, width] → [rows, hidden]."""
        gate, up = (x @ self._whole(matrix).T for matrix in (matrices.gate, matrices.up))
        product = torch.zeros(len(x), matrices.down.width)
        product[:, : gate.shape[1]] = torch.nn.functional.silu(gate) * up
        return product @ self._whole(matrices.down).T

    def _whole(self, matrix: Matrix) -> Tensor:
        """A matrix of one segment, decoded into memory of its own."""
        (segment,) = matrix.segments
        step = self._tile_rows(matrix)
        tiles = [
            self._decoded(segment, begin, min(step, segment.rows - begin), matrix.width).clone()
            for begin in range(0, segment.rows, step)
        ]
        return torch.cat(tiles)


def _matrices(weights: TextWeights) -> Iterator[Matrix]:
    """Every matrix that prefill multiplies by."""
    for layer in weights.layers:
        parts: list[object] = [layer.attention, layer.gdn, layer.mlp, layer.experts]
        if layer.experts is not None:
            parts += [layer.experts.shared, *layer.experts.routed]
        for part in parts:
            if is_dataclass(part):
                values = (getattr(part, field.name) for field in fields(part))
                yield from (value for value in values if isinstance(value, Matrix))
