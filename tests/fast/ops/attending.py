"""Attention over paged pools for tests: lanes with their own activations, shuffled pages, poisoned memory.

Owns pools, block tables and descriptors; a lane's activations depend on its seed alone, so the same lane can
be computed on other pages, in other batches and at other widths.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ninfer.fast.memory.pages import PagePool
from ninfer.fast.ops.attention import contract as c
from ninfer.fast.ops.attention.chunk import scratch_floats
from ninfer.fast.ops.attention.pages import page_scratch_floats
from ninfer.fast.ops.control import MAX_COLUMNS, PAGE_TOKENS
from ninfer.fast.program.table import APPEND, ATTEND, ATTEND_CHUNK, MERGE, ROTARY
from ninfer.model.config import AttentionConfig, RopeConfig, rotary_axis
from ninfer.reference.ops.attention import gated_attention
from ninfer.reference.ops.rms_norm import rms_norm
from ninfer.reference.ops.rope import rope
from tests.fast import kv
from tests.support.fast import (
    Array,
    Copies,
    Floats,
    Operation,
    Poisoned,
    address,
    fields,
    float_bits,
    run,
)

EPS = 1e-6
KV_FORMATS = ("float32", "bf16", "int8", "fp8", "nvfp4", "k8v4")
SECTIONS = {64: (3, 3, 2), 128: (6, 5, 5), 256: (11, 11, 10)}


def attention_config(query_heads: int, kv_heads: int, head_dim: int) -> AttentionConfig:
    """A quarter of each head rotates, in three interleaved axes."""
    return AttentionConfig(query_heads, kv_heads, head_dim, RopeConfig(1e7, 0.25, SECTIONS[head_dim]))


class Lane:
    """A sequence's q, gate, k, v rows and rotary positions, before any norm; ``pages`` its block table."""

    def __init__(self, config: AttentionConfig, length: int, seed: int, far: int = 0) -> None:
        random = np.random.default_rng(seed)
        wide, narrow = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
        self.length = length
        self.query, self.gate = random.standard_normal((2, length, wide)).astype(np.float32)
        self.key, self.value = random.standard_normal((2, length, narrow)).astype(np.float32)
        # Axes that differ from each other and from the position in the sequence.
        self.axes = far + random.integers(0, 100, (3, length))
        self.pages = np.empty(0, np.int32)

    def row(self, position: int) -> tuple[int, ...]:
        """Its control record."""
        return (0, position, *(int(axis) for axis in self.axes[:, position]), address(self.pages), 0)


Rows = Sequence[tuple[Lane, int]]


class Attending:
    """One attention layer over poisoned pools of ``pages`` pages."""

    def __init__(self, config: AttentionConfig, kv_format: str, pages: int = 80, seed: int = 0) -> None:
        self.config, self.format = config, kv_format
        random = np.random.default_rng(seed + 1000)
        self.pool = PagePool(config, [0], pages, kv_format)
        self.layer = self.pool.layers[0]
        self._free = random.permutation(pages).astype(np.int32)
        self._poison()
        random = np.random.default_rng(7)  # the layer's weights are the same on any pages
        self.query_norm, self.key_norm = random.normal(0, 0.3, (2, config.head_dim)).astype(np.float32)
        self._scales = np.float32(1) + self.query_norm, np.float32(1) + self.key_norm

    def _poison(self) -> None:
        """What a page holds before it is written must never matter: not a number, or huge."""
        nan = {"float32": (np.nan, np.nan), "bf16": (0x7FC0, 0x7E00), "int8": (127, 127)}
        self.layer.keys[:], self.layer.values[:] = nan.get(self.format, (0x7F, 0x7F))
        for scales in (self.layer.key_scales, self.layer.value_scales):
            scales[:] = 65504 if scales.dtype == np.float16 else 0x7F

    def place(self, lane: Lane) -> None:
        """Give the lane pages in random order."""
        count = -(-lane.length // PAGE_TOKENS)
        lane.pages, self._free = self._free[:count].copy(), self._free[count:]
        assert len(lane.pages) == count, "the pool is too small for this test"

    def append(self, lane: Lane, end: int, chunk: int = MAX_COLUMNS, begin: int = 0) -> None:
        """Write the keys and values of ``begin..end``, ``chunk`` rows a round."""
        for start in range(begin, end, chunk):
            self.compute([(lane, position) for position in range(start, min(end, start + chunk))], (APPEND,))

    def compute(
        self,
        rows: Rows,
        opcodes: Sequence[int] = (APPEND, ATTEND, MERGE),
        threads: int = 1,
        max_splits: int | None = None,
        copied: bool = True,
    ) -> Floats:
        """The rows' gated outputs [rows, query heads · D], all in one round."""
        config = self.config
        query, gate, key, value = (
            np.stack([getattr(lane, name)[position] for lane, position in rows])
            for name in ("query", "gate", "key", "value")
        )
        wide = query.shape[1]
        y, copies = Poisoned(len(rows), wide), Copies(len(rows), wide)
        splits = max_splits or max(position for _, position in rows) // c.SPLIT_TOKENS + 1
        record = config.head_dim + c.PARTIAL_PADDING
        partials = np.full(len(rows) * config.query_heads * splits * record, np.nan, np.float32)
        size = config.head_dim
        room = scratch_floats(size) if ATTEND_CHUNK in opcodes else page_scratch_floats(size)
        scratch = np.full((threads, room), np.nan, np.float32)
        angles = np.full((len(rows), config.rotary_dim), np.nan, np.float32)
        io = {
            "Q": address(query), "Q_STRIDE": query.strides[0], "GATE": address(gate),
            "GATE_STRIDE": gate.strides[0], "KEYS": address(key), "VALUES": address(value),
            "KV_STRIDE": key.strides[0], "ANGLES": address(angles),
            "PARTIALS": 0 if ATTEND_CHUNK in opcodes else address(partials),
            "MAX_SPLITS": splits, "Y": y.address, "Y_STRIDE": y.stride, "SCRATCH": address(scratch),
            "SCRATCH_STRIDE": scratch.strides[0],
        }  # fmt: skip
        if copied:
            io |= copies.fields
        descriptor = fields(c, **io, **self._fixed)
        operations = [self.rotary(angles), *((opcode, descriptor) for opcode in opcodes)]
        run(operations, rows=[lane.row(position) for lane, position in rows], threads=threads)
        y.check_margin()
        if {MERGE, ATTEND_CHUNK} & set(opcodes) and copied:
            copies.check(y.values)
        else:
            copies.check_untouched()
        return y.values

    @cached_property
    def _fixed(self) -> dict[str, int]:
        config, layer = self.config, self.layer
        return {
            "HEAD_DIM": config.head_dim, "QUERY_HEADS": config.query_heads, "KV_HEADS": config.kv_heads,
            "ROTARY": config.rotary_dim, "KV_FORMAT": self.pool.format, "K_POOL": address(layer.keys),
            "V_POOL": address(layer.values), "K_SCALES": address(layer.key_scales),
            "V_SCALES": address(layer.value_scales), "Q_NORM": address(self._scales[0]),
            "K_NORM": address(self._scales[1]), "EPS_BITS": float_bits(EPS),
        }  # fmt: skip

    @cached_property
    def frequencies(self) -> Floats:
        """θ^(−2j/R) of every rotary pair, as the model computes it in float32."""
        exponents = np.arange(0, self.config.rotary_dim, 2, dtype=np.float32) / self.config.rotary_dim
        return (1 / np.float32(self.config.rope.theta) ** exponents).astype(np.float32)

    @cached_property
    def pair_axes(self) -> Array:
        """The position axis of every rotary pair."""
        pairs = range(self.config.rotary_dim // 2)
        return np.array([rotary_axis(pair, self.config.rope.mrope_section) for pair in pairs], np.int32)

    def rotary(self, angles: Floats) -> Operation:
        """The operation that fills ``angles`` [rows, R]."""
        named = {"FREQUENCIES": address(self.frequencies), "PAIR_AXES": address(self.pair_axes)}
        sizes = {"PAIRS": self.config.rotary_dim // 2, "TABLE": address(angles)}
        return ROTARY, fields(c, "TABLE_FIELDS", **named, **sizes)

    # --- what is right ---------------------------------------------------------------------------------

    def stored(self, lane: Lane, length: int) -> tuple[Array, Array]:
        """The lane's keys (as stored: rotated or not) and values in the pools, float64 [S, Hkv, D]."""
        positions = np.arange(length)
        pages, slots = lane.pages[positions // PAGE_TOKENS], positions % PAGE_TOKENS
        layer = self.layer
        values = layer.values.view(np.float16) if self.format == "bf16" else layer.values
        return (
            kv.decode(self.format, "key", layer.keys[pages, :, slots], layer.key_scales[pages, :, slots]),
            kv.decode(self.format, "value", values[pages, :, slots], layer.value_scales[pages, :, slots]),
        )

    def normed(self, lane: Lane, name: str, positions: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The lane's ``query`` or ``key`` rows after norm and RoPE, [T, heads, D]."""
        rows = torch.from_numpy(getattr(lane, name)[list(positions)]).to(dtype)
        heads = rows.reshape(len(rows), -1, self.config.head_dim)
        weight = torch.from_numpy(getattr(self, f"{name}_norm")).to(dtype)
        axes = torch.from_numpy(lane.axes[:, list(positions)])
        return rope(rms_norm(heads, weight, EPS), axes, self.config.rope)

    def wanted(self, rows: Rows) -> tuple[Array, Array]:
        """The rows in PyTorch float32 and in float64, over the keys and values that the pools hold."""
        results = []
        for dtype in (torch.float32, torch.float64):
            with torch.inference_mode():
                outputs = [self._attended(lane, position, dtype) for lane, position in rows]
            results.append(torch.cat(outputs).flatten(1).numpy().astype(np.float64))
        plain, exact = results
        return plain, exact

    def _attended(self, lane: Lane, position: int, dtype: torch.dtype) -> Tensor:
        query = self.normed(lane, "query", [position], dtype)
        if kv.is_rotated(self.format, "key"):
            query = query @ torch.from_numpy(kv.hadamard(self.config.head_dim)).to(dtype)
        keys, values = (torch.from_numpy(rows).to(dtype) for rows in self.stored(lane, position + 1))
        if kv.is_rotated(self.format, "value"):
            values = values @ torch.from_numpy(kv.hadamard(self.config.head_dim)).to(dtype)
        gate = torch.from_numpy(lane.gate[position]).to(dtype).reshape(query.shape)
        return gated_attention(query, gate, keys, values)
