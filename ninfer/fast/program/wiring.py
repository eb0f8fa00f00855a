"""Descriptors of a model's operations over one workspace: which buffer and weight each one reads and writes.

Shared by the round's table (64 columns) and by prefill (a chunk of tokens). Owns the buffers, the per-thread
scratch and the arrays that descriptors point to; decides no order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.errors import ArtifactError
from ninfer.fast.memory.pages import PagePool
from ninfer.fast.memory.states import StateImages
from ninfer.fast.ops.attention import contract as attention
from ninfer.fast.ops.attention.chunk import scratch_floats
from ninfer.fast.ops.attention.pages import page_scratch_floats
from ninfer.fast.ops.gdn import contract as gdn
from ninfer.fast.ops.linear import formats
from ninfer.fast.ops.linear.contract import SEGMENT_FIELDS, STORE
from ninfer.fast.ops.moe import contract as moe
from ninfer.fast.ops.rows import contract as kept_rows
from ninfer.fast.program.parameters import AttentionWeights, ExpertWeights, GatedMatrices, GdnWeights
from ninfer.fast.program.weights import Matrix, padded
from ninfer.fast.program.workspace import Buffer, Workspace, aligned_zeros
from ninfer.model.config import AttentionConfig, GdnConfig, MoeConfig, TextConfig, rotary_axis

Descriptor = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reads:
    """Which copies of activations anything reads: with even lanes first, as bf16."""

    evens: bool
    rounded: bool


# What float32 arithmetic may read.
FLOATS = Reads(evens=True, rounded=False)


@dataclass(frozen=True, slots=True)
class Activations:
    """Rows in natural order; where something reads them so, with even lanes first within 32, and as bf16."""

    natural: Buffer
    evens: Buffer | None = None
    rounded: Buffer | None = None

    def for_format(self, number: int) -> tuple[int, Buffer]:
        """The arithmetic by which a stored format is multiplied, and the copy that it reads."""
        if number == formats.BF16 and self.rounded is not None:
            return formats.PAIRS, self.rounded
        if number in formats.EVENS_FIRST:
            assert self.evens is not None
            return number, self.evens
        return number, self.natural


class Wiring:
    """Buffers of ``rows`` rows and descriptors over them, for ``threads`` threads."""

    def __init__(
        self,
        config: TextConfig,
        states: StateImages,
        pages: PagePool | None,
        rows: int,
        threads: int,
        max_splits: int,
        reads: Reads = FLOATS,
    ) -> None:
        self.config, self.rows = config, rows
        self.workspace = Workspace(rows)
        self.hidden = self.workspace.buffer("hidden", config.hidden)
        self._states, self._pages = states, pages
        self._threads, self._max_splits = threads, max_splits
        self.reads = reads
        self._eps = int(np.float32(config.rms_eps).view(np.int32))
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def activations(self, name: str, columns: int, rows: int | None = None) -> Activations:
        """The buffer ``name`` and its copies, as far as anybody reads them."""
        buffer = self.workspace.buffer
        return Activations(
            buffer(name, columns, rows),
            buffer(f"{name}_evens", columns, rows) if self.reads.evens else None,
            buffer(f"{name}_rounded", padded(columns) // 2, rows) if self.reads.rounded else None,
        )

    @staticmethod
    def _outputs(x: Activations, offset: int = 0) -> Descriptor:
        """Address and stride from column ``offset`` of every copy in contract order; 0 for none."""
        fields: list[int] = []
        for buffer, size in ((x.natural, 4), (x.evens, 4), (x.rounded, 2)):
            fields += (0, 0) if buffer is None else (buffer.address + size * offset, buffer.stride)
        return tuple(fields)

    def array(self, name: str, count: int, dtype: Any) -> npt.NDArray[Any]:
        """The zeroed array ``name``, kept alive; operations of different layers share one by name."""
        if name not in self._arrays:
            self._arrays[name] = aligned_zeros(count, dtype)
        return self._arrays[name]

    @property
    def bytes(self) -> int:
        """Memory of the buffers and arrays."""
        return self.workspace.bytes + sum(array.nbytes for array in self._arrays.values())

    def _scratch(self, name: str, floats: int) -> tuple[int, int]:
        """Memory per thread: address and stride in bytes."""
        stride = padded(floats)
        return int(self.array(name, self._threads * stride, np.float32).ctypes.data), 4 * stride

    # --- one descriptor each -----------------------------------------------------------------------

    def embed(self, embedding: Matrix) -> Descriptor:
        """Token embeddings into the residual stream."""
        (segment,) = embedding.segments
        planes = (segment.base, segment.base_stride, segment.high, segment.high_stride)
        scales = (segment.scale, segment.scale_stride)
        return (
            segment.format,
            embedding.width,
            *planes,
            *scales,
            self.hidden.address,
            self.hidden.stride,
        )

    def rotary(self, config: AttentionConfig) -> Descriptor:
        """Cosines and sines of every row's positions."""
        pairs = config.rotary_dim // 2
        exponents = np.arange(0, config.rotary_dim, 2, dtype=np.float32) / np.float32(config.rotary_dim)
        frequencies = self.array("frequencies", pairs, np.float32)
        frequencies[:] = np.float32(1) / np.float32(config.rope.theta) ** exponents
        axes = self.array("pair_axes", pairs, np.int32)
        axes[:] = [rotary_axis(pair, config.rope.mrope_section) for pair in range(pairs)]
        return (frequencies.ctypes.data, axes.ctypes.data, pairs, self._angles(config))

    def _angles(self, config: AttentionConfig) -> int:
        return int(self.array("angles", self.rows * config.rotary_dim, np.float32).ctypes.data)

    def norm(
        self,
        weight: npt.NDArray[np.float32],
        target: Activations,
        source: Buffer | None = None,
        offset: int = 0,
    ) -> Descriptor:
        """RMSNorm of the residual stream, or of ``source``, into columns ``offset``.. of ``target``.

        ``weight`` holds 1 + w; ``offset`` is a multiple of 32, within which lanes change their order.
        """
        x = self.hidden if source is None else source
        size = (weight.ctypes.data, self.config.hidden, self._eps)
        return (x.address, x.stride, *size, *self._outputs(target, offset))

    def keep(self, places: int) -> Descriptor:
        """The residual stream to where lanes keep the rows of their newest ``places``."""
        descriptor = (self.hidden.address, self.hidden.stride, self.config.hidden, places)
        assert len(descriptor) == kept_rows.FIELDS
        return descriptor

    @staticmethod
    def segments(
        matrix: Matrix, x: Activations, y: Buffer, offset: int = 0, mode: int = STORE
    ) -> list[Descriptor]:
        """The linear segments of one matrix, writing from column ``offset`` of ``y``."""
        result: list[Descriptor] = []
        for segment in matrix.segments:
            number, source = x.for_format(segment.format)
            planes = (segment.base, segment.base_stride, segment.high, segment.high_stride)
            scales = (segment.scale, segment.scale_stride)
            target = (source.address, source.stride, y.address + 4 * offset, y.stride, mode)
            result.append((number, segment.rows, matrix.width, *planes, *scales, *target))
            offset += segment.rows
        return result

    def attention(self, layer: int, weights: AttentionWeights, config: AttentionConfig) -> Descriptor:
        """Append, attend and merge of one layer over the buffers query, gate, key, value → attended."""
        record = config.head_dim + attention.PARTIAL_PADDING
        count = self.rows * config.query_heads * self._max_splits * record
        partials = self.array("partials", count, np.float32)
        scratch = page_scratch_floats(config.head_dim)
        return self._attention(layer, weights, config, partials.ctypes.data, scratch)

    def chunk_attention(self, layer: int, weights: AttentionWeights, config: AttentionConfig) -> Descriptor:
        """As ``attention``, for append and the attention of a chunk."""
        return self._attention(layer, weights, config, 0, scratch_floats(config.head_dim))

    def _attention(
        self, layer: int, weights: AttentionWeights, config: AttentionConfig, partials: int, scratch: int
    ) -> Descriptor:
        assert self._pages is not None
        size, pool = config.head_dim, self._pages.layers[layer]
        query, gate = (self.workspace.buffer(name, config.query_heads * size) for name in ("query", "gate"))
        key, value = (self.workspace.buffer(name, config.kv_heads * size) for name in ("key", "value"))
        output = self.activations("attended", config.query_heads * size)
        return (
            *(query.address, query.stride, gate.address, gate.stride),
            *(key.address, value.address, key.stride),
            *(weights.query_norm.ctypes.data, weights.key_norm.ctypes.data, self._eps),
            *(size, config.query_heads, config.kv_heads, config.rotary_dim, self._angles(config)),
            *(self._pages.format, pool.keys.ctypes.data, pool.values.ctypes.data),
            *(pool.key_scales.ctypes.data, pool.value_scales.ctypes.data),
            *(partials, self._max_splits),
            *self._outputs(output),
            *self._scratch("attention", scratch),
        )

    def delta_net(
        self, layer: int, weights: GdnWeights, config: GdnConfig, records: str = "", rows: int | None = None
    ) -> Descriptor:
        """Convolution, recurrence and fold of one layer over inputs, a, b, z → mixed.

        ``records`` names the buffers of inputs, convolved columns, gates and working state: one set of
        ``rows`` per layer where they must outlive the layer; "" where not, and no working state is kept then.
        """
        count = self.rows if rows is None else rows
        inputs, convolved = (
            self.workspace.buffer(f"{name}{records}", config.channels, count)
            for name in ("inputs", "convolved")
        )
        gates = self.array(f"gates{records}", count * 2 * config.value_heads, np.float32)
        a, b = (self.workspace.buffer(name, config.value_heads) for name in ("a", "b"))
        z = self.workspace.buffer("z", config.value_heads * config.value_dim)
        mixed = self.activations("mixed", config.value_heads * config.value_dim)
        state = config.key_dim * config.value_dim
        scratch = 4 * config.key_dim + 2 * config.value_dim + state
        kept = 0
        if records:
            kept = self.array(f"state{records}", config.value_heads * state, np.float32).ctypes.data
        descriptor = (
            *(inputs.address, inputs.stride, config.taps, config.channels, weights.convolution.ctypes.data),
            *(convolved.address, convolved.stride, a.address, b.address, a.stride),
            *(weights.a_log.ctypes.data, weights.dt_bias.ctypes.data, gates.ctypes.data),
            *(z.address, z.stride, weights.norm.ctypes.data, self._eps),
            *(config.key_heads, config.value_heads, config.key_dim, config.value_dim),
            *(self._states.window_offsets[layer], self._states.state_offsets[layer]),
            *self._outputs(mixed),
            *self._scratch("gdn", scratch),
            kept,
        )
        assert len(descriptor) == gdn.FIELDS
        return descriptor

    def swiglu(self, name: str, width: int) -> Descriptor:
        """SiLU(``name``_gate) ⊙ ``name``_up → ``name``_product."""
        gate, up = (self.workspace.buffer(f"{name}_{part}", width) for part in ("gate", "up"))
        product = self.activations(f"{name}_product", width)
        return (gate.address, up.address, gate.stride, padded(width), *self._outputs(product))

    def experts(self, layer: int, weights: ExpertWeights, config: MoeConfig, x: Activations) -> Descriptor:
        """Route, expand and contract of one layer over router, shared_score and shared → hidden."""
        chosen = config.experts_per_token
        logits = self.workspace.buffer("router", config.experts)
        score, shared = (
            self.workspace.buffer(name, columns)
            for name, columns in (("shared_score", 1), ("shared", self.config.hidden))
        )
        table, evens_in, evens_out = self._expert_table(layer, weights.routed)
        choice = self.array("choice", self.rows * chosen, np.int64)
        strengths = self.array("strengths", self.rows * chosen, np.float32)
        width = weights.routed[0].down.width
        products = self.array("products", self.rows * chosen * width, np.float32)
        source = x.evens if evens_in and x.evens is not None else x.natural
        descriptor = (
            *(logits.address, logits.stride, config.experts, chosen),
            *(choice.ctypes.data, strengths.ctypes.data, table.ctypes.data),
            *(source.address, source.stride, config.expert_mlp, self.config.hidden),
            *(products.ctypes.data, 4 * width, int(evens_out)),
            *(shared.address, shared.stride, score.address, score.stride),
            *(self.hidden.address, self.hidden.stride),
            *self._scratch("moe", 2 * moe.TASK_ROWS),
        )
        assert len(descriptor) == moe.FIELDS
        return descriptor

    def _expert_table(
        self, layer: int, routed: tuple[GatedMatrices, ...]
    ) -> tuple[npt.NDArray[np.int64], bool, bool]:
        """Segments [experts, 3, fields], and whether inputs and products are read evens first."""
        flat = self.array(f"experts_{layer}", len(routed) * 3 * SEGMENT_FIELDS, np.int64)
        table = flat.reshape(-1, 3, SEGMENT_FIELDS)
        for expert, matrices in enumerate(routed):
            for place, matrix in enumerate((matrices.gate, matrices.up, matrices.down)):
                if len(matrix.segments) != 1:
                    raise ArtifactError(
                        f"bindings.text/layers/{layer}/moe/experts/{expert}",
                        "must be whole ranges of one object",
                    )
                (segment,) = matrix.segments
                planes = (segment.base, segment.base_stride, segment.high, segment.high_stride)
                scales = (segment.scale, segment.scale_stride)
                fields = (segment.format, segment.rows, matrix.width, *planes, *scales, 0, 0, 0, 0, STORE)
                table[expert, place] = fields
        orders = {(m.gate.evens_first, m.up.evens_first, m.down.evens_first) for m in routed}
        (gate, up, down), *rest = orders
        if rest or gate != up:
            raise ArtifactError(
                f"bindings.text/layers/{layer}/moe", "routed experts mix formats above and below 8 bits"
            )
        return table, gate, down
