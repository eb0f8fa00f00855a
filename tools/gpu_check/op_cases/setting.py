"""Where and in which type cases run, how results are compared, and what a row of the table says."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.fast.program.gpu.tiles import TileTable


@dataclass(frozen=True, slots=True)
class Row:
    """One line: ``error`` must not pass ``bound`` (0 where results are integers: then it counts them)."""

    op: str
    format: str
    width: int
    error: float
    bound: float

    @property
    def passes(self) -> bool:
        """An error that is no number does not."""
        return self.error <= self.bound

    def line(self) -> str:
        """The row as the table shows it."""
        return (
            f"{self.op:22} {self.format:8} {self.width:6} {self.error:10.2e} {self.bound:10.2e} "
            f"{'ok' if self.passes else 'FAIL'}"
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """A device, the type of activations there and the tiles of its architecture.

    Cases make every tensor on PyTorch's current default device, which ``run`` callers set to ``device``.
    """

    device: torch.device
    activations: torch.dtype
    tiles: TileTable

    @property
    def sums(self) -> float:
        """Float32 sums: matrix units cut what they add to a few bits less than float32 rounds."""
        return 1e-4 if self.device.type == "cuda" else 1e-5

    @property
    def halves(self) -> float:
        """Probabilities and expanded keys in fp16, where activations are not float32."""
        return 0.0 if self.activations == torch.float32 else 2e-3

    def stored(self, roundings: int = 1) -> float:
        """That many roundings to the activation type, relative to the largest value."""
        return roundings * torch.finfo(self.activations).eps / 2

    def rows(self, count: int, width: int, columns: int, gain: float = 1.0) -> Tensor:
        """Random activations [count, width], zero beyond ``columns``."""
        x = torch.zeros(count, width, dtype=self.activations)
        x[:, :columns] = gain * torch.randn(count, columns)
        return x


def poison(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What was not written shows."""
    return torch.full(shape, float("nan"), dtype=dtype)


def distance(found: Tensor, wanted: Tensor) -> float:
    """The largest difference in any row over the row's largest value.

    ``found`` may have more rows and columns than ``wanted``: nothing may have been written there.
    """
    rows, columns = wanted.shape
    inside = found[:rows, :columns].double()
    beyond = (found[rows:], found[:rows, columns:])
    if inside.isnan().any() or not all(part.isnan().all() for part in beyond):
        return math.inf
    away = (inside - wanted.double()).abs().amax(1)
    return float((away / wanted.double().abs().amax(1).clamp(min=1e-30)).max())


def apart(found: Tensor, wanted: Tensor) -> float:
    """The norm of the difference over the norm of what is wanted."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def different(found: Tensor, wanted: Tensor) -> float:
    """How many integers (or numbers that were only copied) differ."""
    return float((found != wanted).sum()) if found.shape == wanted.shape else math.inf
