"""Prefill of one chunk of one prompt: matrices by the platform's GEMM, the rest by kernels over all rows.

A matrix that is not bf16 is rounded to the activation type into scratch first; at a chunk of thousands of
tokens that is a few percent. The chunk's keys go to the lane's pages and its state to the lane's image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ninfer.fast.ops.attention import gpu as attention
from ninfer.fast.ops.attention.encodings import BF16
from ninfer.fast.ops.attention.gpu_chunk import attend_chunk
from ninfer.fast.ops.gdn import gpu as gdn
from ninfer.fast.ops.gdn.gpu_chunks import CHUNK, ChunkBuffers, delta_chunk
from ninfer.fast.ops.gpu_control import BLOCK_WORDS, ROW_WORDS
from ninfer.fast.ops.linear.gpu import dequantise, embed
from ninfer.fast.ops.linear.packing import BF16 as PLAIN
from ninfer.fast.ops.linear.packing import Packed, padded
from ninfer.fast.ops.moe import gpu as moe
from ninfer.fast.ops.rms_norm.gpu import Sums, combine
from ninfer.fast.ops.swiglu.gpu import swiglu
from ninfer.fast.program.gpu.buffers import STEP, Workspace
from ninfer.fast.program.gpu.delta_nets import delta_net
from ninfer.fast.program.gpu.forward import Forward
from ninfer.fast.program.gpu.memory import GpuPages
from ninfer.fast.program.gpu.parameters import (
    AttentionPart,
    GatedPart,
    GdnPart,
    Layer,
    MixturePart,
    TextModel,
)
from ninfer.fast.program.gpu.tiles import TileTable
from ninfer.fast.program.gpu.weights import Projection
from ninfer.model.config import TextConfig

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Part of one prompt. Shapes: ``tokens`` [T], ``axes`` [3, T]; ``start`` is the place of the first token.

    ``lane`` names the block table, ``slot`` the state image.
    """

    tokens: Tokens
    axes: Tokens
    start: int
    lane: int
    slot: int


@dataclass(slots=True, eq=False)
class _Pending:
    sums: Sums | None = None
    shared: Tensor | None = None
    score: Tensor | None = None


class Prefill:
    """Runs chunks of at most ``rows`` tokens; takes all its memory at once."""

    def __init__(
        self,
        config: TextConfig,
        model: TextModel,
        forward: Forward,
        pages: GpuPages | None,
        tables: Tensor,
        tiles: TileTable,
        rows: int,
        activations: torch.dtype,
        query: torch.dtype,
        device: torch.device,
    ) -> None:
        self._config, self._model, self._forward = config, model, forward
        self._pages, self._tables, self._tiles = pages, tables, tiles
        self.rows, self._activations = rows, activations
        self.workspace = Workspace(device)
        make = self.workspace.tensor
        self._control = make("control", (rows, ROW_WORDS), torch.int32)
        self._host = torch.zeros((rows, ROW_WORDS), dtype=torch.int32, pin_memory=device.type == "cuda")
        self._block = make("block", (1, BLOCK_WORDS), torch.int32)
        self._host_block = torch.zeros((1, BLOCK_WORDS), dtype=torch.int32, pin_memory=device.type == "cuda")
        self.hidden = make("hidden", (rows, config.hidden), torch.float32)
        self._normed = make("normed", (rows, padded(config.hidden, STEP)), activations)
        self._output = make("output", (1, rows, config.hidden), activations)
        self._scratch = self._scratch_for_weights()
        self._reserve(query)

    @property
    def bytes(self) -> int:
        return self.workspace.bytes

    def _scratch_for_weights(self) -> Tensor | None:
        """Memory of the largest matrix that must be rounded to activations first."""
        largest = max((matrix.padded_rows * matrix.width for matrix in _rounded(self._model)), default=0)
        if largest == 0:
            return None
        return self.workspace.tensor("weights", (largest,), self._activations)

    def _reserve(self, query: torch.dtype) -> None:
        """Every other buffer, so that the memory is accounted before the pages are sized."""
        config, rows, make, kind = self._config, self.rows, self.workspace.tensor, self._activations
        columns = [0]
        for layer in self._model.layers:
            part = layer.attention if layer.attention is not None else layer.gdn
            assert part is not None
            columns.append(part.inputs.columns)
        make("projected", (rows, max(columns)), kind)
        if config.attention is not None:
            a = config.attention
            make("query", (rows, a.query_heads, a.head_dim), query)
            make("attended", (rows, padded(a.query_heads * a.head_dim, STEP)), kind)
            make("raw", (rows, a.query_heads, a.head_dim), kind)
        if config.gdn is not None:
            self._delta_buffers()
        if config.mlp is not None:
            make("both", (rows, 2 * config.mlp), kind)
            make("product", (rows, padded(config.mlp, STEP)), kind)
        if config.moe is not None:
            m = config.moe
            make("router", (1, rows, m.experts + 1), kind)
            make("choice", (rows, m.experts_per_token), torch.int32)
            make("strengths", (rows, m.experts_per_token), torch.float32)
            make("products", (rows * m.experts_per_token, padded(m.expert_mlp, STEP)), kind)
            make("expert_sums", (rows, m.experts_per_token, config.hidden), kind)
            make("both", (rows, 2 * m.shared_mlp), kind)
            make("product", (rows, padded(m.shared_mlp, STEP)), kind)
            make("shared", (1, rows, config.hidden), kind)

    def _delta_buffers(self) -> ChunkBuffers:
        g, rows, make, kind = self._config.gdn, self.rows, self.workspace.tensor, self._activations
        assert g is not None
        keys, values = (rows, g.key_heads, g.key_dim), (rows, g.value_heads, g.value_dim)
        make("gates", (rows, 2 * g.value_heads), kind)
        make("mixed", (rows, padded(g.value_heads * g.value_dim, STEP)), kind)
        return ChunkBuffers(
            query=make("gdn_query", keys, kind),
            key=make("gdn_key", keys, kind),
            value=make("gdn_value", values, kind),
            written=make("gdn_written", values, kind),
            read=make("gdn_read", (rows, g.value_heads, g.key_dim), kind),
            local=make("gdn_local", (rows, g.value_heads, CHUNK), kind),
            sums=make("gdn_sums", (rows, g.value_heads), torch.float32),
            system=make("gdn_system", (rows // CHUNK + 2, g.value_heads, CHUNK, CHUNK), torch.float32),
            output=make("gdn_output", values, kind),
        )

    def set_pages(self, pages: GpuPages) -> None:
        """The pools, which are sized last."""
        self._pages = pages

    def expand_pages(self, pages: int) -> None:
        """Scratch for a lane's expanded pages, where the KV format is not 16 bits wide."""
        if self._pages is None:
            return
        pool = next(iter(self._pages.layers.values()))
        if pool.key.number == BF16:
            return
        a = self._config.attention
        assert a is not None
        shape = (pages, a.kv_heads, attention.PAGE, a.head_dim)
        self.workspace.tensor("expanded_keys", shape, torch.int16)
        self.workspace.tensor("expanded_values", shape, torch.int16)
        identity = self.workspace.tensor("identity", (pages,), torch.int32)
        identity.copy_(torch.arange(pages, dtype=torch.int32))

    def run(self, chunk: Chunk) -> Tensor:
        """The residual row [hidden] of the chunk's last token, a copy."""
        count = len(chunk.tokens)
        self._upload(chunk)
        embed(self._control[:, 0], self._model.embedding, self.hidden, count)
        pending = _Pending()
        for index, layer in enumerate(self._model.layers):
            self._norm(pending, layer.input_norm, count)
            mixed, output = self._mixer(index, layer, chunk)
            pending = self._sum(mixed, output, count)
            self._norm(pending, layer.post_norm, count)
            pending = self._feed_forward(layer, count)
        combine(self.hidden, pending.sums, pending.shared, pending.score, None, None, 0.0, count)
        return self.hidden[count - 1].clone()

    def _upload(self, chunk: Chunk) -> None:
        count = len(chunk.tokens)
        rows = self._host.numpy()
        rows[:count, 0] = chunk.tokens
        rows[:count, 1] = np.arange(chunk.start, chunk.start + count)
        rows[:count, 2:5] = chunk.axes.T
        rows[:count, 5] = chunk.lane
        self._host_block[0] = torch.tensor([0, count, chunk.slot, 1, chunk.start, chunk.lane, 0, 0])
        self._control[:count].copy_(self._host[:count], non_blocking=True)
        self._block.copy_(self._host_block, non_blocking=True)

    def _norm(self, pending: _Pending, weight: Tensor, count: int) -> None:
        eps = self._config.rms_eps
        combine(self.hidden, pending.sums, pending.shared, pending.score, weight, self._normed, eps, count)

    def _multiply(self, x: Tensor, matrix: Packed, y: Tensor) -> None:
        """``y = x Wᵀ`` over the rows of ``x``."""
        weights = matrix.words if self._scratch is None or matrix.format == PLAIN else self._scratch
        w = dequantise(matrix, weights)[: matrix.rows].to(x.dtype)
        torch.mm(x[:, : matrix.width], w.T, out=y[:, : matrix.rows])

    def _sum(self, x: Tensor, matrix: Packed, count: int) -> _Pending:
        self._multiply(x[:count], matrix, self._output[0, :count])
        return _Pending(Sums(self._output))

    def _project(self, projection: Projection, name: str, count: int) -> Tensor:
        buffer = self.workspace.held(name)
        # Rows without gaps: the platform's product writes them straight.
        y = buffer.view(-1)[: count * projection.columns].view(count, projection.columns)
        for matrix, begin in projection.parts:
            self._multiply(self._normed[:count], matrix, y[:, begin:])
        return y

    def _mixer(self, index: int, layer: Layer, chunk: Chunk) -> tuple[Tensor, Packed]:
        if layer.attention is not None:
            return self._attention(index, layer.attention, chunk), layer.attention.output
        assert layer.gdn is not None
        return self._delta_net(index, layer.gdn, chunk), layer.gdn.output

    def _attention(self, index: int, part: AttentionPart, chunk: Chunk) -> Tensor:
        assert self._pages is not None
        tensors, count = self.workspace, len(chunk.tokens)
        projected = self._project(part.inputs, "projected", count)
        heads, pool = self._forward.heads(part, projected), self._pages.layers[index]
        query, raw, attended = tensors.held("query"), tensors.held("raw"), tensors.held("attended")
        attention.append(heads, pool, self._control, self._tables, query, count)
        scratch, identity = None, self._tables
        if pool.key.number != BF16:
            scratch = (tensors.held("expanded_keys"), tensors.held("expanded_values"))
            identity = tensors.held("identity")
        attend_chunk(
            heads, query, pool, self._tables[chunk.lane], chunk.start, count, attended, scratch, identity,
            raw,
            self._tiles.chunk_attention(), self._activations,
        )  # fmt: skip
        return attended

    def _delta_net(self, index: int, part: GdnPart, chunk: Chunk) -> Tensor:
        count = len(chunk.tokens)
        projected = self._project(part.inputs, "projected", count)
        gates = None if part.gates is None else self._project(part.gates, "gates", count)[None]
        net = delta_net(self._config, self._forward.states, index, part, projected, gates)
        mixed = self.workspace.held("mixed")
        delta_chunk(net, self._delta_buffers(), chunk.slot, chunk.start, count, mixed)
        gdn.shift(net, self._block, 1)
        return mixed

    def _feed_forward(self, layer: Layer, count: int) -> _Pending:
        if layer.dense is not None:
            return self._sum(self._swiglu(layer.dense, count), layer.dense.output, count)
        assert layer.mixture is not None
        return self._mixture(layer.mixture, count)

    def _swiglu(self, part: GatedPart, count: int) -> Tensor:
        both = self.workspace.held("both")[:count, : part.inputs.rows]
        product = self.workspace.held("product")
        self._multiply(self._normed[:count], part.inputs, both)
        swiglu(both, product, part.inputs.rows // 2, count)
        return product

    def _mixture(self, part: MixturePart, count: int) -> _Pending:
        config, held = self._config.moe, self.workspace.held
        assert config is not None
        chosen = config.experts_per_token
        router, choice, strengths = held("router"), held("choice"), held("strengths")
        for matrix, begin in part.router.parts:
            self._multiply(self._normed[:count], matrix, router[0, :count, begin:])
        moe.route(router, choice, strengths, config.experts, count)
        shared = held("shared")
        self._multiply(self._swiglu(part.shared, count)[:count], part.shared.output, shared[0, :count])
        grouping = moe.group(choice[:count], config.experts)
        products, sums = held("products"), held("expert_sums")
        for experts, x, y, gated in (
            (part.inputs, self._normed, products, True),
            (part.outputs, products, sums.view(-1, self._config.hidden), False),
        ):
            matrix = experts.matrix
            weights = matrix.words if self._scratch is None or matrix.format == PLAIN else self._scratch
            moe.grouped(x, grouping, experts, dequantise(matrix, weights), chosen, y, gated)
        return _Pending(Sums(sums.transpose(0, 1), strengths), shared, router[:, :, config.experts])


def _rounded(model: TextModel) -> list[Packed]:
    """Every matrix that prefill must round to activations."""
    found: list[Packed] = []
    for layer in model.layers:
        projections: list[Projection] = []
        if layer.attention is not None:
            projections.append(layer.attention.inputs)
            found.append(layer.attention.output)
        if layer.gdn is not None:
            projections += [layer.gdn.inputs] + ([] if layer.gdn.gates is None else [layer.gdn.gates])
            found.append(layer.gdn.output)
        if layer.dense is not None:
            found += [layer.dense.inputs, layer.dense.output]
        if layer.mixture is not None:
            part = layer.mixture
            projections.append(part.router)
            found += [part.shared.inputs, part.shared.output, part.inputs.matrix, part.outputs.matrix]
        found += [matrix for projection in projections for matrix, _ in projection.parts]
    return [matrix for matrix in found if matrix.format != PLAIN]
