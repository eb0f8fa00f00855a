"""The reference over a random model's own planes: weights by logical name, keys and values as the pools hold
them.

Owns the conversion only; every operation is ``ninfer.reference``'s. It runs on the device for speed, in
float64 as the oracle and in bf16 as plain PyTorch, whose error the engine's is compared with.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor

from ninfer.fast.memory.lanes import Lane
from ninfer.fast.ops.attention import encodings as e
from ninfer.fast.ops.attention.gpu import Pool
from ninfer.fast.ops.linear import packing
from ninfer.fast.program.gpu.program import GpuProgram
from ninfer.fast.program.gpu.weights import Named
from ninfer.model.config import AttentionConfig, TextConfig
from ninfer.reference.model import ReferenceModel, text_positions
from ninfer.reference.state import KvCache
from tools.gpu_check.random_model import RandomSource

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class RecordedSource:
    """A random source that keeps what it gave out, decoded to float64."""

    def __init__(self, inner: RandomSource) -> None:
        self._inner = inner
        self.values: dict[str, Tensor] = {}

    def matrix(self, name: str) -> Named:
        """As the inner source."""
        number, planes = self._inner.matrix(name)
        self.values[name] = decoded(number, planes)
        return number, planes

    def vector(self, name: str, offset: float = 0.0) -> Tensor:
        """As the inner source; what is kept has no offset."""
        values = self._inner.vector(name)
        self.values[name] = values.double()
        return values + offset

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """As the inner source."""


def decoded(number: int, planes: list[Tensor]) -> Tensor:
    """Natural planes as float64 values, by the formats' definition."""
    if number == packing.BF16:
        return planes[0].double()
    if number == packing.FP8:
        return planes[0].view(torch.float8_e4m3fn).double() * planes[1].double()[:, None]
    if number == packing.NVFP4:
        codes, scales, factors = planes
        table = torch.tensor(_E2M1, dtype=torch.float64, device=codes.device)
        values = table[(codes & 7).long()] * torch.where(codes > 7, -1.0, 1.0)
        scale = scales.view(torch.float8_e4m3fn).double().repeat_interleave(16, 1)
        return values * scale * factors.double()[:, None]
    group = 32 if number == packing.Q8 else 64
    scales = planes[1].double().repeat_interleave(group, 1)
    return planes[0].double() * scales[:, : planes[0].shape[1]]


def hadamard(size: int, device: torch.device) -> Tensor:
    """The normalised Sylvester matrix, float64."""
    matrix = torch.ones((1, 1), dtype=torch.float64, device=device)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix * size**-0.5


def stored_rows(pool: Pool, lane: Lane, head_dim: int) -> tuple[Tensor, Tensor]:
    """A lane's keys and values [length, KV heads, D] float64, in their own basis."""
    places = torch.arange(lane.frontier, device=pool.keys.device)
    pages = torch.tensor(lane.pages, device=pool.keys.device)[places // 64]

    def rows(words: Tensor, scales: Tensor, encoding: e.Encoding) -> Tensor:
        w, s = words[pages, :, places % 64], scales[pages, :, places % 64]
        if encoding.number in (e.BF16, e.FP16):
            kind = torch.bfloat16 if encoding.number == e.BF16 else torch.float16
            x = w.view(kind).double()
        elif encoding.number == e.INT8:
            x = w.double() * s.double().repeat_interleave(64, -1)
        elif encoding.number == e.FP8:
            x = w.view(torch.float8_e4m3fn).double() * s.double()
        else:
            nibbles = torch.stack([w & 15, (w >> 4) & 15], -1).flatten(-2).long()
            table = torch.tensor(_E2M1, dtype=torch.float64, device=w.device)
            x = table[nibbles & 7] * torch.where(nibbles > 7, -1.0, 1.0)
            x = x * s.view(torch.float8_e4m3fn).double().repeat_interleave(16, -1)
        return x @ hadamard(head_dim, x.device) if encoding.rotated else x

    return (
        rows(pool.keys, pool.key_scales, pool.key),
        rows(pool.values, pool.value_scales, pool.value),
    )


class _StoredCache(KvCache):
    """Reads the engine's rows in place of its own; ``worst`` is how far its own were from them."""

    def __init__(self, config: AttentionConfig, dtype: torch.dtype, rows: tuple[Tensor, Tensor]) -> None:
        super().__init__(config, dtype)
        self._stored = rows
        self.worst = 0.0

    def append(self, keys: Tensor, values: Tensor) -> None:
        begin = self.length
        own = (keys, values)
        stored = [rows[begin : begin + len(keys)].to(keys.dtype) for rows in self._stored]
        for mine, theirs in zip(own, stored, strict=True):
            self.worst = max(self.worst, float((mine - theirs).abs().max() / mine.abs().max()))
        super().append(stored[0], stored[1])


@dataclass(frozen=True, slots=True, eq=False)
class Forced:
    """Logits [positions, V] float64 of a pass; the largest relative distance of stored rows from its own."""

    logits: Tensor
    stored: float


class Oracle:
    """One model in one type."""

    def __init__(self, config: TextConfig, values: dict[str, Tensor], dtype: torch.dtype) -> None:
        self._config, self._dtype = config, dtype
        weights = {name: value.to(dtype) for name, value in values.items()}
        if config.tied:
            weights["text/output_head"] = weights["text/token_embedding"]
        self._model = ReferenceModel(config, weights)

    def _solver(self) -> AbstractContextManager[object]:
        """PyTorch solves no triangular systems in bf16: that one operation runs in float32."""
        solve = torch.linalg.solve_triangular

        def wide(system: Tensor, right: Tensor, **options: bool) -> Tensor:
            return solve(system.float(), right.float(), **options).to(right.dtype)

        return (
            patch("torch.linalg.solve_triangular", wide) if self._dtype == torch.bfloat16 else nullcontext()
        )

    @torch.inference_mode()
    def forced(self, program: GpuProgram, lane: Lane, tokens: list[int], first: int) -> Forced:
        """Logits after each of ``tokens`` from index ``first`` on, over the lane's stored keys and values."""
        device = program.device
        with torch.device(device), self._solver():
            state = self._model.new_state()
            caches = []
            pools = {} if program.pages is None else program.pages.layers
            for layer, pool in pools.items():
                assert self._config.attention is not None
                rows = stored_rows(pool, lane, self._config.attention.head_dim)
                cache = _StoredCache(self._config.attention, self._dtype, rows)
                state.layers[layer] = cache
                caches.append(cache)
            hidden = self._model.forward(torch.tensor(tokens), text_positions(0, len(tokens)), state)
            logits = self._model.logits(hidden[first:]).double()
        return Forced(logits, max((cache.worst for cache in caches), default=0.0))
