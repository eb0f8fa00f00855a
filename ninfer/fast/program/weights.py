"""Resident weights: stored planes of an artifact's matrices by address, vectors as float32.

Owns the arrays and keeps them alive; a matrix stays in its artifact format. Rows that the kernels cannot
stream as they are (a width that is no multiple of a K step, or an object that is not row-aligned) are copied
once with zero padding. Nothing here computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.artifact import Artifact, EncodedPiece, Proposal
from ninfer.artifact.codecs.block_scaled import unswizzle
from ninfer.artifact.contract import formats as tensor_formats
from ninfer.errors import ArtifactError
from ninfer.fast.memory.arena import Arena
from ninfer.fast.ops.linear import formats

Array = npt.NDArray[Any]
LoadListener = Callable[[int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Consecutive rows of one stored object: format number, addresses and strides in bytes.

    ``keep`` holds the arrays behind the addresses.
    """

    format: int
    rows: int
    base: int
    base_stride: int
    high: int
    high_stride: int
    scale: int
    scale_stride: int
    keep: tuple[Array, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes that one row streams."""
        return self.base_stride + self.high_stride + self.scale_stride


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A logical matrix [rows, columns]; ``width`` is the columns padded to a K step."""

    rows: int
    columns: int
    segments: tuple[Segment, ...]

    @property
    def width(self) -> int:
        return padded(self.columns)

    @property
    def evens_first(self) -> bool:
        """Whether some segment reads activations in even-lanes-first order."""
        return any(segment.format in formats.EVENS_FIRST for segment in self.segments)

    @property
    def stored_bytes(self) -> int:
        """Bytes that one pass over the matrix streams."""
        return sum(segment.rows * segment.row_bytes for segment in self.segments)


def padded(columns: int) -> int:
    """``columns`` rounded up to a K step."""
    return -(-columns // formats.STEP) * formats.STEP


class WeightLoader:
    """Loads matrices and vectors of an open artifact by logical name; ``listener`` hears bytes."""

    def __init__(self, artifact: Artifact, listener: LoadListener | None = None) -> None:
        self._artifact = artifact
        self._listener = listener
        self._arena = Arena()
        self._resident: dict[str, dict[str, Array]] = {}
        self._by_row: dict[str, dict[str, Array]] = {}

    def vector(self, name: str, offset: float = 0.0) -> Array:
        """A parameter as contiguous float32 plus ``offset`` (zero-centred norms are kept as 1 + w)."""
        return np.ascontiguousarray(self._artifact.parameter(name).astype(np.float32) + np.float32(offset))

    def integers(self, name: str) -> npt.NDArray[np.int32]:
        """A parameter of ids."""
        return np.ascontiguousarray(self._artifact.parameter(name), np.int32)

    @property
    def proposal(self) -> Proposal | None:
        """What the text component says of a proposal head."""
        return self._artifact.directory.components["text"].proposal

    def matrix(self, name: str) -> Matrix:
        """A parameter's stored rows.

        Errors: ``ArtifactError`` naming the parameter whose format the CPU kernels do not read.
        """
        shape = self._artifact.parameter_shape(name)
        rows, columns = (1, *shape) if len(shape) == 1 else shape
        pieces = self._artifact.encoded(name)
        numbers = [self._number(name, piece) for piece in pieces]
        if all(piece.rows is not None and piece.object.shape[1:] == (columns,) for piece in pieces):
            segments = tuple(self._segment(n, p, columns) for n, p in zip(numbers, pieces, strict=True))
        else:
            segments = (self._copied(name, columns),)
        return Matrix(rows, columns, segments)

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Kernels trust addresses, so what is loaded must be what the config sizes buffers for.

        Errors: ``ArtifactError`` naming the parameter.
        """
        found = self._artifact.parameter_shape(name)
        if found != shape:
            raise ArtifactError(f"bindings.{name}", f"has shape {found}, the config asks for {shape}")

    def _number(self, name: str, piece: EncodedPiece) -> int:
        number = formats.NAMES.get(piece.object.format)
        if number is None:
            raise ArtifactError(
                f"bindings.{name}", f"format {piece.object.format} has no CPU kernel yet; reconvert the model"
            )
        return number

    def _segment(self, number: int, piece: EncodedPiece, columns: int) -> Segment:
        assert piece.rows is not None
        begin, end = piece.rows
        if "codes" in piece.planes:
            return _grouped(number, self._coded(piece, columns), begin, end)
        if "words" not in piece.planes:
            return _grouped(number, self._planes(piece), begin, end)
        if columns % formats.STEP:
            return _direct(number, _pad(piece.planes["words"][begin:end], columns), 0, end - begin)
        return _direct(number, self._planes(piece)["words"], begin, end)

    def _copied(self, name: str, columns: int) -> Segment:
        """The decoded parameter in float32, for ranges that do not lie in whole rows."""
        decoded = self._artifact.parameter(name).reshape(-1, columns)
        return _direct(formats.F32, _pad(decoded.astype(np.float32), columns), 0, len(decoded))

    def _coded(self, piece: EncodedPiece, columns: int) -> dict[str, Array]:
        """Planes of one-byte and half-byte floats by row: rows padded, scales in their natural order."""
        planes, kept = self._planes(piece), self._by_row
        if piece.object.id in kept:
            return kept[piece.object.id]
        codes, scales = planes["codes"], planes["scales"]
        if "divisor" in planes:
            numeric = tensor_formats()[piece.object.format]
            natural = unswizzle(numeric, scales.reshape(-1), len(codes), columns)
            # One divisor for all rows: a plane whose rows lie at one place.
            divisor = np.broadcast_to(planes["divisor"].reshape(1).view(np.float32), (len(codes), 1))
            kept[piece.object.id] = {
                "base": codes, "scales": np.ascontiguousarray(natural), "high": divisor
            }  # fmt: skip
        else:
            wide = codes if columns % formats.STEP == 0 else _pad(codes, columns)
            kept[piece.object.id] = {"base": wide, "scales": scales.reshape(-1, 1)}
        return kept[piece.object.id]

    def _planes(self, piece: EncodedPiece) -> dict[str, Array]:
        """The object's planes in memory of our own: page faults belong to start-up, not to a round."""
        if piece.object.id not in self._resident:
            copies = {plane: self._arena.copy(array) for plane, array in piece.planes.items()}
            self._resident[piece.object.id] = copies
            if self._listener is not None:
                self._listener(sum(array.nbytes for array in copies.values()))
        return self._resident[piece.object.id]


def _pad(rows: Array, columns: int) -> Array:
    result = np.zeros((len(rows), padded(columns)), rows.dtype)
    result[:, :columns] = rows
    return result


def _direct(number: int, words: Array, begin: int, end: int) -> Segment:
    stride = words.strides[0]
    return Segment(number, end - begin, words.ctypes.data + begin * stride, stride, 0, 0, 0, 0, (words,))


def _grouped(number: int, planes: dict[str, Array], begin: int, end: int) -> Segment:
    base, scales, high = planes["base"], planes["scales"], planes.get("high")
    return Segment(
        format=number,
        rows=end - begin,
        base=base.ctypes.data + begin * base.strides[0],
        base_stride=base.strides[0],
        high=0 if high is None else high.ctypes.data + begin * high.strides[0],
        high_stride=0 if high is None else high.strides[0],
        scale=scales.ctypes.data + begin * scales.strides[0],
        scale_stride=scales.strides[0],
        keep=(base, scales) if high is None else (base, scales, high),
    )
