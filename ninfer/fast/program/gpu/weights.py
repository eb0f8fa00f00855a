"""Matrices of an artifact on a device, repacked once; neighbours that read the same input become one.

Owns the way from stored planes to ``Packed``. Vectors become float32. Nothing here computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ninfer.artifact import Artifact, EncodedPiece, Proposal
from ninfer.errors import ArtifactError
from ninfer.fast.ops.linear import packing
from ninfer.fast.ops.linear.packing import Packed
from ninfer.fast.ops.moe.gpu import Experts

Planes = list[Tensor]
Named = tuple[int, Planes]
LoadListener = Callable[[int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """Matrices that read the same rows and write side by side: (matrix, first column); each name's column."""

    parts: tuple[tuple[Packed, int], ...]
    at: dict[str, int]
    columns: int

    @property
    def single(self) -> Packed:
        """The only matrix."""
        ((matrix, _),) = self.parts
        return matrix


def project(named: Sequence[tuple[str, Named]]) -> Projection:
    """Join neighbours of one format; ``named`` is in the order of the columns."""
    at, columns = {}, 0
    runs: list[tuple[int, list[Planes], int]] = []
    for name, (number, planes) in named:
        at[name] = columns
        if runs and runs[-1][0] == number:
            runs[-1][1].append(planes)
        else:
            runs.append((number, [planes], columns))
        columns += planes[0].shape[0]
    parts = tuple(
        (packing.repack(number, [torch.cat(p) for p in zip(*pieces, strict=True)]), begin)
        for number, pieces, begin in runs
    )
    return Projection(parts, at, columns)


def gated(where: str, gate: Named, up: Named) -> Packed:
    """Gate and up row by row. Errors: ``ArtifactError`` when their formats differ."""
    if gate[0] != up[0]:
        raise ArtifactError(where, "gate and up have different formats; reconvert the model")
    return packing.repack(
        gate[0], [torch.stack(pair, 1).flatten(0, 1) for pair in zip(gate[1], up[1], strict=True)]
    )


def stack(where: str, rows: int, experts: Iterator[Named]) -> Experts:
    """One tall matrix of every expert's ``rows`` rows, each padded to whole panels of rows."""
    stride = packing.padded(rows, packing.ROW_STEP)
    number, pieces = -1, []
    for current, planes in experts:
        if number not in (-1, current):
            raise ArtifactError(where, "experts of one layer have different formats; reconvert the model")
        number = current
        pieces.append(
            [torch.nn.functional.pad(p, (0, 0) * (p.dim() - 1) + (0, stride - rows)) for p in planes]
        )
    joined = [torch.cat(planes) for planes in zip(*pieces, strict=True)]
    return Experts(packing.repack(number, joined), rows, stride)


class GpuLoader:
    """Natural planes and vectors of an open artifact on ``device``; ``listener`` hears bytes."""

    def __init__(
        self, artifact: Artifact, device: torch.device, listener: LoadListener | None = None
    ) -> None:
        self._artifact, self._device, self._listener = artifact, device, listener

    def vector(self, name: str, offset: float = 0.0) -> Tensor:
        """A parameter as float32 plus ``offset``."""
        values = self._artifact.parameter(name).astype(np.float32) + np.float32(offset)
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def integers(self, name: str) -> Tensor:
        """A parameter of ids, int32."""
        return self._tensor(self._artifact.parameter(name).astype(np.int32))

    @property
    def proposal(self) -> Proposal | None:
        """What the text component says of a proposal head."""
        return self._artifact.directory.components["text"].proposal

    def matrix(self, name: str) -> Named:
        """A parameter's format and natural planes (``packing.unpack``).

        Errors: ``ArtifactError`` naming the parameter whose storage no GPU kernel reads.
        """
        shape = self._artifact.parameter_shape(name)
        columns = shape[-1]
        pieces = self._artifact.encoded(name)
        numbers = {packing.NAMES.get(piece.object.format) for piece in pieces}
        if len(numbers) != 1 or None in numbers:
            found = sorted({piece.object.format for piece in pieces})
            raise ArtifactError(
                f"bindings.{name}", f"format {', '.join(found)} has no GPU kernel; reconvert the model"
            )
        if any(piece.rows is None or piece.object.shape[1:] != (columns,) for piece in pieces):
            raise ArtifactError(f"bindings.{name}", "does not lie in whole rows; reconvert the model")
        (number,) = numbers
        assert number is not None
        parts = [self._planes(number, piece, columns) for piece in pieces]
        planes = [torch.cat(p) if len(p) > 1 else p[0] for p in zip(*parts, strict=True)]
        if self._listener is not None:
            self._listener(sum(plane.numel() * plane.element_size() for plane in planes))
        return number, planes

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Kernels trust sizes. Errors: ``ArtifactError`` naming the parameter."""
        found = self._artifact.parameter_shape(name)
        if found != shape:
            raise ArtifactError(f"bindings.{name}", f"has shape {found}, the config asks for {shape}")

    def _planes(self, number: int, piece: EncodedPiece, columns: int) -> Planes:
        assert piece.rows is not None
        rows = slice(*piece.rows)
        take = piece.planes
        if number == packing.BF16:
            return [self._tensor(take["words"][rows].view(np.int16)).view(torch.bfloat16)]
        if number == packing.FP8:
            scales = self._tensor(take["scales"][rows].view(np.int16)).view(torch.bfloat16).float()
            return [self._tensor(take["codes"][rows]), scales]
        if number == packing.NVFP4:
            return self._nvfp4(take, piece, columns)
        bits, group = (8, 32) if number == packing.Q8 else (packing.BITS[number], 64)
        groups = -(-columns // group)
        high = take.get("high")
        codes = grouped_codes(
            bits, group, self._tensor(take["base"][rows]), None if high is None else self._tensor(high[rows])
        )
        return [codes[:, :columns].contiguous(), self._tensor(take["scales"][rows])[:, :groups].contiguous()]

    def _nvfp4(self, take: object, piece: EncodedPiece, columns: int) -> Planes:
        assert piece.rows is not None
        rows, planes = slice(*piece.rows), piece.planes
        packed = self._tensor(planes["codes"][rows])
        codes = torch.stack([packed & 15, packed >> 4], -1).flatten(1)
        # Scales lie in tiles of 128 rows and 4 groups: byte (n % 32) * 16 + (n % 128 // 32) * 4 + g % 4.
        tiles = self._tensor(planes["scales"]).view(-1, columns // 64, 32, 4, 4)
        scales = tiles.permute(0, 3, 2, 1, 4).reshape(-1, columns // 16)[rows]
        factor = np.float32(1) / np.float32(planes["divisor"])
        count = packed.shape[0]
        return [codes, scales.contiguous(), torch.full((count,), float(factor), device=self._device)]

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array).copy()).to(self._device)


def grouped_codes(bits: int, group: int, base: Tensor, high: Tensor | None) -> Tensor:
    """Stored planes of the grouped formats to signed codes [N, K] int8.

    ``base`` [N, groups · 32] uint8, ``high`` [N, groups · group · (bits − 4) / 8] uint8.
    """
    if bits == 8:
        return base.view(torch.int8)
    low = torch.stack([base & 15, base >> 4], -1).flatten(1)
    if high is not None:
        places = torch.arange(8, dtype=torch.uint8, device=high.device)
        stream = (high[..., None] >> places & 1).flatten(1).view(low.shape[0], -1, bits - 4)
        for bit in range(bits - 4):
            low = low | stream[..., bit] << (4 + bit)
    sign = 1 << (bits - 1)
    return (low ^ sign).view(torch.int8) - sign
