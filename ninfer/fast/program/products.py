"""Matrix products of a chunk.

Matrices that read the same rows become one product, whose columns lie side by side in one buffer. bf16 words
are multiplied where they lie, by the ``linear`` of rounds; other formats are decoded tile by tile, each right
before the platform's GEMM reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ninfer.fast.ops.embedding import contract as embedding
from ninfer.fast.ops.linear import formats
from ninfer.fast.ops.linear.contract import ADD, STORE
from ninfer.fast.program import table as t
from ninfer.fast.program.script import Multiply, RoundedMultiply, Script
from ninfer.fast.program.weights import Matrix, Segment
from ninfer.fast.program.wiring import Activations, Descriptor, Wiring
from ninfer.fast.program.workspace import Buffer

# Bytes of decoded weights that one product reads: they should still be in cache when it starts.
TILE_BYTES = 4 << 20

# A segment's rows ``begin..begin + rows`` for the columns from ``column`` of a product.
Piece = tuple[Segment, int, int, int]
# A matrix and the first of its columns in a product.
Member = tuple[Matrix, int]


class Products:
    """Appends products to ``script``; ``widest`` is the largest K.

    Owns the memory that the steps work in: it must live as long as they do.
    """

    def __init__(self, script: Script, widest: int, threads: int, is_bf16: bool) -> None:
        self._script, self._is_bf16 = script, is_bf16
        kind = torch.bfloat16 if is_bf16 else torch.float32
        self._tile = torch.zeros(max(TILE_BYTES // 4, 64 * widest), dtype=kind)
        self._scratch = torch.zeros(threads, widest)
        self._memory = torch.zeros(0, dtype=kind)

    def multiply(self, members: Sequence[Member], x: Activations, y: Buffer, adds: bool = False) -> None:
        """y[:, column:] = x Wᵀ (or +=) of every member; all have one width."""
        if all(segment.format == formats.BF16 for matrix, _ in members for segment in matrix.segments):
            mode, segments = ADD if adds else STORE, Wiring.segments
            self._script.linear([one for matrix, at in members for one in segments(matrix, x, y, at, mode)])
            return
        (width,) = {matrix.width for matrix, _ in members}
        source, target = self._source(x, width), torch.from_numpy(y.array)
        for tile in self._tiles(members, width):
            first, rows = tile[0][3], sum(count for _, _, count, _ in tile)
            weights = self._weights(tile, rows, width)
            self._append(source, weights.T, target[:, first : first + rows], adds)

    def _source(self, x: Activations, width: int) -> Tensor:
        if x.rounded is None:
            return torch.from_numpy(x.natural.array)[:, :width]
        return torch.from_numpy(x.rounded.array).view(torch.bfloat16)[:, :width]

    def _append(self, x: Tensor, weights: Tensor, y: Tensor, adds: bool) -> None:
        if not self._is_bf16:
            self._script.step(Multiply(x, weights, y, adds))
            return
        size = len(y) * y.shape[1]
        if self._memory.numel() < size:
            self._memory = torch.zeros(size, dtype=torch.bfloat16)
        self._script.step(RoundedMultiply(x, weights, y, adds, self._memory))

    def _tiles(self, members: Sequence[Member], width: int) -> Iterator[list[Piece]]:
        """Consecutive columns, as many as the tile holds."""
        room = max(64, self._tile.numel() // width // 64 * 64)
        tile: list[Piece] = []
        free = room
        for segment, begin, rows, column in _pieces(members):
            if tile and column != tile[-1][3] + tile[-1][2]:
                yield tile
                tile, free = [], room
            while rows:
                taken = min(rows, free)
                tile.append((segment, begin, taken, column))
                begin, rows, column, free = begin + taken, rows - taken, column + taken, free - taken
                if not free:
                    yield tile
                    tile, free = [], room
        if tile:
            yield tile

    def _weights(self, tile: Sequence[Piece], rows: int, width: int) -> Tensor:
        """The tile's weights [rows, width], decoded by operations appended here."""
        weights = self._tile[: rows * width].view(rows, width)
        place = 0
        for segment, begin, count, _ in tile:
            descriptor = decoding(segment, begin, count, width, weights[place:], self._scratch)
            self._script.operation(t.DECODE, descriptor)
            place += count
        return weights


def _pieces(members: Sequence[Member]) -> Iterator[Piece]:
    for matrix, column in members:
        for segment in matrix.segments:
            yield segment, 0, segment.rows, column
            column += segment.rows


def decoding(
    segment: Segment, begin: int, rows: int, width: int, target: Tensor, scratch: Tensor
) -> Descriptor:
    """Rows of a segment into ``target`` [at least rows, width], float32 or bfloat16.

    ``scratch`` [threads, at least width] float32 serves the rounding.
    """
    descriptor = (
        *(segment.format, width),
        *(segment.base + begin * segment.base_stride, segment.base_stride),
        *(segment.high + begin * segment.high_stride, segment.high_stride),
        *(segment.scale + begin * segment.scale_stride, segment.scale_stride),
        *(target.data_ptr(), target.element_size() * width),
        *(rows, int(target.dtype == torch.bfloat16), scratch.data_ptr(), 4 * scratch.shape[1]),
    )
    assert len(descriptor) == embedding.TILE_FIELDS
    return descriptor
