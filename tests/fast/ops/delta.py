"""Gated DeltaNet for tests: one layer's weights, lanes with state images and inputs, and what is right.

A lane's inputs depend on its seed alone, so the same lane can be computed in other blocks and batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ninfer.fast.ops.control import ALL
from ninfer.fast.ops.gdn import contract as c
from ninfer.fast.program.table import CONVOLVE, FOLD, RECUR, SHIFT
from ninfer.model.config import GdnConfig
from ninfer.reference.ops.causal_conv import causal_conv
from ninfer.reference.ops.gated_norm import gated_norm
from ninfer.reference.ops.gdn_gates import gdn_gates
from ninfer.reference.ops.gdn_recurrent import gdn_recurrent
from ninfer.reference.ops.l2_norm import l2_norm
from tests.support.fast import (
    Array,
    Copies,
    Floats,
    Poisoned,
    address,
    assert_same_bits,
    fields,
    float_bits,
    run,
)

EPS = 1e-6
GUARD = 64  # floats around the window and the state of an image


class Lane:
    """Inputs u, a, b, z of ``length`` columns, and a committed image (window, then state)."""

    def __init__(self, config: GdnConfig, length: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        values = config.value_heads * config.value_dim
        self.config, self.length = config, length
        self.u = random.standard_normal((length, config.channels)).astype(np.float32)
        self.z = random.standard_normal((length, values)).astype(np.float32)
        self.a, self.b = random.standard_normal((2, length, config.value_heads)).astype(np.float32)
        self._window = (config.taps - 1) * config.channels
        state = config.value_heads * config.key_dim * config.value_dim
        self.image = np.full(3 * GUARD + self._window + state, np.nan, np.float32)
        self.window[:] = random.standard_normal(self.window.shape)
        self.state[:] = random.standard_normal(self.state.shape) / 4

    @property
    def window(self) -> Floats:
        """[taps − 1, channels]."""
        return self.image[GUARD : GUARD + self._window].reshape(-1, self.config.channels)

    @property
    def state(self) -> Floats:
        """[value heads, d_k, d_v]."""
        heads, rows, columns = self.config.value_heads, self.config.key_dim, self.config.value_dim
        return self.image[2 * GUARD + self._window : -GUARD].reshape(heads, rows, columns)

    def copy(self) -> Lane:
        """The same lane on an image of its own."""
        other = object.__new__(Lane)
        other.__dict__ |= self.__dict__
        other.image = self.image.copy()
        return other


@dataclass(frozen=True, slots=True)
class Block:
    """Columns ``begin..end`` of a lane's inputs."""

    lane: Lane
    begin: int
    end: int
    commit: bool = True


class DeltaNet:
    """One layer's weights and operations."""

    def __init__(self, config: GdnConfig, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.config = config
        self.convolution = random.normal(0, 0.5, (config.taps, config.channels)).astype(np.float32)
        # Decays from nearly none to a few tokens.
        self.a_log = random.uniform(-3, 1, config.value_heads).astype(np.float32)
        self.dt_bias = random.uniform(-2, 1, config.value_heads).astype(np.float32)
        self.norm = (1 + random.normal(0, 0.3, config.value_dim)).astype(np.float32)

    def compute(
        self,
        blocks: Sequence[Block],
        accept: Sequence[int] | None = None,
        threads: int = 1,
        gap: int = 0,
        keeps: bool = False,
    ) -> Floats:
        """The blocks' outputs [rows, value heads · d_v] in one round; blocks begin ``gap`` rows apart.

        ``accept`` folds that many columns of each block into its committed image afterwards; ``keeps``: there
        is room for the first block's working state.
        """
        config, rows, records = self.config, sum(b.end - b.begin + gap for b in blocks), []
        inputs = {name: [np.full((gap, getattr(blocks[0].lane, name).shape[1]), np.nan)] for name in "uabz"}
        first = gap
        for block in blocks:
            records.append((first, block.end - block.begin, address(block.lane.image), int(block.commit)))
            first += block.end - block.begin + gap
            for name, parts in inputs.items():
                parts += [getattr(block.lane, name)[block.begin : block.end], parts[0]]
        u, a, b, z = (np.concatenate(inputs[name]).astype(np.float32) for name in "uabz")
        wide = config.value_heads * config.value_dim
        y, copies = Poisoned(rows + gap, wide), Copies(rows + gap, wide)
        convolved = Poisoned(rows + gap, config.channels)
        gates = np.full((rows + gap + 1, config.value_heads, 2), np.nan, np.float32)
        scratch = np.full((threads, self.scratch_floats), np.nan, np.float32)
        state = np.full(config.value_heads * config.key_dim * config.value_dim, np.nan, np.float32)
        named: dict[str, Any] = {
            "KEPT": address(state) if keeps else 0,
            "U": address(u), "U_STRIDE": u.strides[0], "CONVOLVED": convolved.address,
            "CONVOLVED_STRIDE": convolved.stride, "A": address(a), "B": address(b), "AB_STRIDE": a.strides[0],
            "GATES": address(gates), "Z": address(z), "Z_STRIDE": z.strides[0], "Y": y.address,
            "Y_STRIDE": y.stride, "SCRATCH": address(scratch), "SCRATCH_STRIDE": scratch.strides[0],
            **copies.fields,
        }  # fmt: skip
        descriptor = fields(c, **named, **self._fixed(blocks[0].lane))
        run([(CONVOLVE, descriptor), (RECUR, descriptor)], blocks=records, threads=threads)
        for target in (y, convolved):
            target.check_margin()
        written = [row for first, count, *_ in records for row in range(first, first + count)]
        idle = sorted({*range(rows + gap)} - {*written})
        assert np.isnan(y.values[idle]).all()
        assert np.isnan(gates[-1]).all()
        copies.check(y.values[written], written)
        outputs = y.values[written].copy()
        if accept is not None:
            kept = [
                (first, m, image, ALL if keeps and m == count else 0)
                for m, (first, count, image, _) in zip(accept, records, strict=True)
            ]
            # Fold replays records: it must read none of these again.
            a[:], b[:], z[:] = np.nan, np.nan, np.nan
            run([(FOLD, descriptor), (SHIFT, descriptor)], blocks=kept, threads=threads)
            assert_same_bits(y.values[written], outputs, "fold wrote outputs")
        return outputs

    @property
    def scratch_floats(self) -> int:
        """What the operations need per thread: q and k of two columns, error, output, a working state."""
        config = self.config
        return 4 * config.key_dim + 2 * config.value_dim + config.key_dim * config.value_dim

    def _fixed(self, lane: Lane) -> dict[str, int]:
        config = self.config
        window = 4 * GUARD
        return {
            "TAPS": config.taps, "CHANNELS": config.channels, "CONV_WEIGHT": address(self.convolution),
            "A_LOG": address(self.a_log), "DT_BIAS": address(self.dt_bias), "NORM": address(self.norm),
            "EPS_BITS": float_bits(EPS), "KEY_HEADS": config.key_heads, "VALUE_HEADS": config.value_heads,
            "KEY_DIM": config.key_dim, "VALUE_DIM": config.value_dim, "WINDOW_OFFSET": window,
            "STATE_OFFSET": window + lane.window.nbytes + window,
        }  # fmt: skip

    def wanted(self, block: Block, dtype: torch.dtype) -> tuple[Array, Array, Array]:
        """Outputs, window and state after the block, by the reference's operations in ``dtype``."""
        with torch.inference_mode():
            results = self._reference(block, dtype)
        outputs, window, state = (tensor.numpy().astype(np.float64) for tensor in results)
        return outputs, window, state

    def _reference(self, block: Block, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config

        def tensor(values: Array) -> Tensor:
            return torch.from_numpy(values).to(dtype)

        lane, columns = block.lane, slice(block.begin, block.end)
        u, a, b, z = (tensor(getattr(lane, name)[columns]) for name in "uabz")
        u, window = causal_conv(u, tensor(lane.window), tensor(self.convolution))
        keys, group = config.key_heads * config.key_dim, config.value_heads // config.key_heads
        query, key = (
            part.reshape(len(u), config.key_heads, config.key_dim).repeat_interleave(group, dim=1)
            for part in (u[:, :keys], u[:, keys : 2 * keys])
        )
        value = u[:, 2 * keys :].reshape(len(u), config.value_heads, config.value_dim)
        decay, beta = gdn_gates(a, b, tensor(self.a_log), tensor(self.dt_bias))
        query, key = l2_norm(query) / config.key_dim**0.5, l2_norm(key)
        output, state = gdn_recurrent(query, key, value, decay, beta, tensor(lane.state))
        gate = z.reshape(output.shape)
        return gated_norm(output, gate, tensor(self.norm), EPS).flatten(1), window, state
