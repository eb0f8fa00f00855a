"""The text model as a table of operations: Forward to float32 logits, Finish to tokens, fold after verifying.

Owns the wiring of one model: which buffer feeds which operation. The mathematics stands in ``ops``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ninfer.errors import ArtifactError
from ninfer.fast.memory.pages import PagePool
from ninfer.fast.memory.states import StateImages
from ninfer.fast.ops.attention import contract as attention
from ninfer.fast.ops.attention.cpu import split_count
from ninfer.fast.ops.control import MAX_COLUMNS, PAGE_TOKENS
from ninfer.fast.ops.gdn import contract as gdn
from ninfer.fast.ops.linear import formats
from ninfer.fast.ops.linear.contract import ADD, SEGMENT_FIELDS, STORE
from ninfer.fast.ops.moe import contract as moe
from ninfer.fast.ops.select import contract as select
from ninfer.fast.program import table as t
from ninfer.fast.program.parameters import GatedMatrices, LayerWeights, TextWeights
from ninfer.fast.program.weights import Matrix, padded
from ninfer.fast.program.workspace import Buffer, Workspace, aligned_zeros
from ninfer.model.config import AttentionConfig, GdnConfig, MoeConfig, TextConfig, rotary_axis

Pair = tuple[Buffer, Buffer | None]


class TextTable:
    """Builds the table; ``forward``, ``finish`` and ``fold`` are its ranges of operations."""

    def __init__(
        self,
        config: TextConfig,
        weights: TextWeights,
        states: StateImages,
        pages: PagePool | None,
        max_context: int,
        vocabulary: int,
        threads: int,
    ) -> None:
        self.config = config
        self.workspace = Workspace(MAX_COLUMNS)
        self._weights, self._states, self._pages = weights, states, pages
        self._max_splits = split_count(max_context)
        self._threads = threads
        self._builder = t.TableBuilder()
        self._keep: list[npt.NDArray[np.generic]] = []
        self._eps = int(np.float32(config.rms_eps).view(np.int32))
        self._hidden = self.workspace.buffer("hidden", config.hidden)
        self.final = self.workspace.buffer("final", config.hidden)
        self.logits = self.workspace.buffer("logits", config.vocab)
        self.drawn = aligned_zeros(MAX_COLUMNS, np.int64)
        self._forward()
        self.forward = (0, self._builder.length)
        self._finish(vocabulary)
        self.finish = (self.forward[1], self._builder.length)
        self._fold()
        self.fold = (self.finish[1], self._builder.length)
        self.table = self._builder.build()

    # --- forward -----------------------------------------------------------------------------------

    def _forward(self) -> None:
        self._embed()
        if self.config.attention is not None:
            self._rotary(self.config.attention)
        self._gdn_descriptors: list[tuple[int, ...]] = []
        for layer, weights in enumerate(self._weights.layers):
            x = self._norm(weights.input_norm, "normed", self._hidden)
            if weights.attention is not None:
                assert self.config.attention is not None
                self._attention(layer, weights, self.config.attention, x)
            else:
                assert self.config.gdn is not None
                self._delta_net(layer, weights, self.config.gdn, x)
            x = self._norm(weights.post_attention_norm, "normed", self._hidden)
            if weights.experts is None:
                self._dense(weights, x)
            else:
                assert self.config.moe is not None
                self._mixture(weights, self.config.moe, x)
        x = self._norm(self._weights.final_norm, "final", self._hidden)
        self._builder.linear(self._segments(self._weights.head, x, self.logits))

    def _embed(self) -> None:
        (segment,) = self._weights.embedding.segments
        planes = (segment.base, segment.base_stride, segment.high, segment.high_stride)
        scales = (segment.scale, segment.scale_stride)
        width = self._weights.embedding.width
        target = (self._hidden.address, self._hidden.stride)
        self._builder.add(t.EMBED, (segment.format, width, *planes, *scales, *target))

    def _rotary(self, config: AttentionConfig) -> None:
        pairs = config.rotary_dim // 2
        exponent = np.arange(0, config.rotary_dim, 2, dtype=np.float32) / np.float32(config.rotary_dim)
        frequencies = (1.0 / (np.float32(config.rope.theta) ** exponent)).astype(np.float32)
        axes = np.array([rotary_axis(pair, config.rope.mrope_section) for pair in range(pairs)], np.int32)
        self._angles = aligned_zeros(MAX_COLUMNS * config.rotary_dim, np.float32)
        self._keep += [frequencies, axes, self._angles]
        self._builder.add(
            t.ROTARY, (frequencies.ctypes.data, axes.ctypes.data, pairs, self._angles.ctypes.data)
        )

    def _norm(self, weight: npt.NDArray[np.float32], name: str, source: Buffer) -> Pair:
        """RMSNorm of the residual stream; both lane orders are written, readers choose."""
        size = self.config.hidden
        y, permuted = self.workspace.buffer(name, size), self.workspace.buffer(f"{name}_evens", size)
        self._builder.add(
            t.NORM,
            (
                source.address,
                source.stride,
                weight.ctypes.data,
                size,
                self._eps,
                y.address,
                y.stride,
                permuted.address,
                permuted.stride,
            ),
        )
        return y, permuted

    def _segments(
        self, matrix: Matrix, x: Pair, y: Buffer, offset: int = 0, mode: int = STORE
    ) -> list[tuple[int, ...]]:
        """The segments of one matrix, writing from column ``offset`` of ``y``."""
        result: list[tuple[int, ...]] = []
        for segment in matrix.segments:
            source = x[1] if segment.format in formats.EVENS_FIRST else x[0]
            assert source is not None
            planes = (segment.base, segment.base_stride, segment.high, segment.high_stride)
            scales = (segment.scale, segment.scale_stride)
            target = (source.address, source.stride, y.address + 4 * offset, y.stride, mode)
            result.append((segment.format, segment.rows, matrix.width, *planes, *scales, *target))
            offset += segment.rows
        return result

    def _scratch(self, name: str, floats: int) -> tuple[int, int]:
        """Memory per thread: address and stride in bytes."""
        stride = -(-floats // 16) * 16
        memory = aligned_zeros(self._threads * stride, np.float32)
        self._keep.append(memory)
        return int(memory.ctypes.data), 4 * stride

    # --- attention ---------------------------------------------------------------------------------

    def _attention(self, layer: int, weights: LayerWeights, config: AttentionConfig, x: Pair) -> None:
        assert weights.attention is not None
        assert self._pages is not None
        size = config.head_dim
        query_rows, kv_rows = config.query_heads * size, config.kv_heads * size
        query, gate = (self.workspace.buffer(name, query_rows) for name in ("query", "gate"))
        key, value = (self.workspace.buffer(name, kv_rows) for name in ("key", "value"))
        output, permuted = (
            self.workspace.buffer(name, query_rows) for name in ("attended", "attended_evens")
        )
        part = weights.attention
        self._builder.linear(
            [
                *self._segments(part.query, x, query),
                *self._segments(part.gate, x, gate),
                *self._segments(part.key, x, key),
                *self._segments(part.value, x, value),
            ]
        )
        pool = self._pages.layers[layer]
        descriptor = (
            *(query.address, query.stride, gate.address, gate.stride),
            *(key.address, value.address, key.stride),
            *(part.query_norm.ctypes.data, part.key_norm.ctypes.data, self._eps),
            *(size, config.query_heads, config.kv_heads, config.rotary_dim, self._angles.ctypes.data),
            *(self._pages.format, pool.keys.ctypes.data, pool.values.ctypes.data),
            *(pool.key_scales.ctypes.data, pool.value_scales.ctypes.data),
            *(self._partials(config), self._max_splits),
            *(output.address, output.stride, permuted.address, permuted.stride),
            *self._shared_scratch("attention", PAGE_TOKENS),
        )
        for opcode in (t.APPEND, t.ATTEND, t.MERGE):
            self._builder.add(opcode, descriptor)
        self._builder.linear(self._segments(part.output, (output, permuted), self._hidden, mode=ADD))

    def _partials(self, config: AttentionConfig) -> int:
        if not hasattr(self, "_partial_memory"):
            record = config.head_dim + attention.PARTIAL_PADDING
            count = MAX_COLUMNS * config.query_heads * self._max_splits * record
            self._partial_memory = aligned_zeros(count, np.float32)
        return int(self._partial_memory.ctypes.data)

    def _shared_scratch(self, name: str, floats: int) -> tuple[int, int]:
        """One scratch for every layer: operations never overlap."""
        if not hasattr(self, f"_{name}_scratch"):
            setattr(self, f"_{name}_scratch", self._scratch(name, floats))
        address, stride = getattr(self, f"_{name}_scratch")
        return address, stride

    # --- Gated DeltaNet ----------------------------------------------------------------------------

    def _delta_net(self, layer: int, weights: LayerWeights, config: GdnConfig, x: Pair) -> None:
        assert weights.gdn is not None
        part = weights.gdn
        key_rows, value_rows = config.key_heads * config.key_dim, config.value_heads * config.value_dim
        # Inputs, convolved columns and gates stay per layer: they are the records that fold replays.
        inputs, convolved = (
            self.workspace.buffer(f"{name}_{layer}", config.channels) for name in ("inputs", "convolved")
        )
        a, b = (self.workspace.buffer(name, config.value_heads) for name in ("a", "b"))
        z, y, permuted = (self.workspace.buffer(name, value_rows) for name in ("z", "mixed", "mixed_evens"))
        self._builder.linear(
            [
                *self._segments(part.query, x, inputs),
                *self._segments(part.key, x, inputs, key_rows),
                *self._segments(part.value, x, inputs, 2 * key_rows),
                *self._segments(part.z, x, z),
                *self._segments(part.a_projection, x, a),
                *self._segments(part.b_projection, x, b),
            ]
        )
        floats = 2 * config.key_dim + 2 * config.value_dim + config.key_dim * config.value_dim
        gates = aligned_zeros(MAX_COLUMNS * 2 * config.value_heads, np.float32)
        self._keep.append(gates)
        descriptor = (
            *(inputs.address, inputs.stride, config.taps, config.channels, part.convolution.ctypes.data),
            *(convolved.address, convolved.stride, a.address, b.address, a.stride),
            *(part.a_log.ctypes.data, part.dt_bias.ctypes.data, gates.ctypes.data),
            *(z.address, z.stride, part.norm.ctypes.data, self._eps),
            *(config.key_heads, config.value_heads, config.key_dim, config.value_dim),
            *(self._states.window_offsets[layer], self._states.state_offsets[layer]),
            *(y.address, y.stride, permuted.address, permuted.stride),
            *self._shared_scratch("gdn", floats),
        )
        assert len(descriptor) == gdn.FIELDS
        self._gdn_descriptors.append(descriptor)
        self._builder.add(t.CONVOLVE, descriptor)
        self._builder.add(t.RECUR, descriptor)
        self._builder.linear(self._segments(part.output, (y, permuted), self._hidden, mode=ADD))

    # --- feed-forward ------------------------------------------------------------------------------

    def _dense(self, weights: LayerWeights, x: Pair) -> None:
        assert weights.mlp is not None
        product = self._gated(weights.mlp.gate, weights.mlp.up, x, "mlp")
        self._builder.linear(self._segments(weights.mlp.down, product, self._hidden, mode=ADD))

    def _gated(self, gate: Matrix, up: Matrix, x: Pair, name: str) -> Pair:
        """SiLU(gate x) ⊙ up x."""
        gates, ups, product, permuted = (
            self.workspace.buffer(f"{name}_{suffix}", gate.rows)
            for suffix in ("gate", "up", "product", "product_evens")
        )
        self._builder.linear([*self._segments(gate, x, gates), *self._segments(up, x, ups)])
        source = (gates.address, ups.address, gates.stride, padded(gate.rows))
        target = (product.address, product.stride, permuted.address, permuted.stride)
        self._builder.add(t.SWIGLU, (*source, *target))
        return product, permuted

    def _mixture(self, weights: LayerWeights, config: MoeConfig, x: Pair) -> None:
        assert weights.experts is not None
        part = weights.experts
        hidden, chosen = self.config.hidden, config.experts_per_token
        logits, score = (
            self.workspace.buffer(name, columns)
            for name, columns in (("router", config.experts), ("shared_score", 1))
        )
        self._builder.linear(
            [*self._segments(part.router, x, logits), *self._segments(part.shared_score, x, score)]
        )
        shared = self.workspace.buffer("shared", hidden)
        product = self._gated(part.shared.gate, part.shared.up, x, "shared_mlp")
        self._builder.linear(self._segments(part.shared.down, product, shared))
        table, evens_in, evens_out = self._expert_table(part.routed)
        choice = aligned_zeros(MAX_COLUMNS * chosen, np.int64)
        strengths = aligned_zeros(MAX_COLUMNS * chosen, np.float32)
        width = part.routed[0].down.width
        products = aligned_zeros(MAX_COLUMNS * chosen * width, np.float32)
        self._keep += [table, choice, strengths, products]
        source = x[1] if evens_in else x[0]
        assert source is not None
        descriptor = (
            *(logits.address, logits.stride, config.experts, chosen),
            *(choice.ctypes.data, strengths.ctypes.data, table.ctypes.data),
            *(source.address, source.stride, config.expert_mlp, hidden),
            *(products.ctypes.data, 4 * width, int(evens_out)),
            *(shared.address, shared.stride, score.address, score.stride),
            *(self._hidden.address, self._hidden.stride),
            *self._shared_scratch("moe", 2 * moe.TASK_ROWS),
        )
        assert len(descriptor) == moe.FIELDS
        for opcode in (t.ROUTE, t.EXPAND, t.CONTRACT):
            self._builder.add(opcode, descriptor)

    def _expert_table(self, routed: Sequence[GatedMatrices]) -> tuple[npt.NDArray[np.int64], bool, bool]:
        """Segments [experts, 3, fields] and whether the inputs, and the products, are read evens first."""
        table = aligned_zeros(len(routed) * 3 * SEGMENT_FIELDS, np.int64).reshape(-1, 3, SEGMENT_FIELDS)
        for expert, matrices in enumerate(routed):
            for place, matrix in enumerate((matrices.gate, matrices.up, matrices.down)):
                (segment,) = matrix.segments
                planes = (segment.base, segment.base_stride, segment.high, segment.high_stride)
                scales = (segment.scale, segment.scale_stride)
                fields = (segment.format, segment.rows, matrix.width, *planes, *scales, 0, 0, 0, 0, STORE)
                table[expert, place] = fields
        evens = {(m.gate.evens_first, m.up.evens_first, m.down.evens_first) for m in routed}
        if len(evens) != 1 or len({*next(iter(evens))[:2]}) != 1:
            raise ArtifactError("bindings", "routed experts of one layer mix formats above and below 8 bits")
        into, _, out = next(iter(evens))
        return table, into, out

    # --- finish and fold ---------------------------------------------------------------------------

    def _finish(self, vocabulary: int) -> None:
        slices = -(-vocabulary // select.SLICE)
        best = aligned_zeros(MAX_COLUMNS * slices * (1 + 2 * select.CANDIDATES), np.int64)
        self._keep.append(best)
        addresses = (self.logits.address, self.logits.stride, vocabulary)
        descriptor = (*addresses, best.ctypes.data, self.drawn.ctypes.data)
        self._builder.add(t.SCAN, descriptor)
        self._builder.add(t.DRAW, descriptor)

    def _fold(self) -> None:
        for descriptor in self._gdn_descriptors:
            self._builder.add(t.FOLD, descriptor)
            self._builder.add(t.SHIFT, descriptor)
