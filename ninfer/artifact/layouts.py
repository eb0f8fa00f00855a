"""Geometry of a stored tensor: planes, their offsets and the bytes of any row range.

Owns the encoded-size formulas of spec/artifact.yaml#layouts; never touches a payload. Rows are the first axis
(a scalar is one row); a row's columns are everything behind it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ninfer.artifact.contract import TensorFormat, TensorLayout, align_up, formats, layouts
from ninfer.artifact.directory import Shape
from ninfer.artifact.json_text import shorten
from ninfer.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class Plane:
    """One plane of an object: ``block_bytes`` for every ``Geometry.row_block`` rows; 0 for a divisor."""

    name: str
    offset: int
    bytes: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where an object's rows lie. ``row_block`` is the smallest row count that planes can be cut at."""

    format: TensorFormat
    layout: TensorLayout
    shape: Shape
    rows: int
    columns: int
    planes: tuple[Plane, ...]
    bytes: int
    row_block: int = 1

    def plane(self, name: str) -> Plane:
        """The plane called ``name``."""
        return next(plane for plane in self.planes if plane.name == name)

    def span(self, plane: Plane, first: int, end: int) -> tuple[int, int]:
        """Offset in the object and length of rows [first, end), which must fit ``row_block``."""
        assert first % self.row_block == 0, "rows start inside a block"
        assert end % self.row_block == 0 or end == self.rows, "rows end inside a block"
        if plane.block_bytes == 0:
            return plane.offset, plane.bytes
        begin = first // self.row_block * plane.block_bytes
        return plane.offset + begin, -(-end // self.row_block) * plane.block_bytes - begin

    def gaps(self) -> list[tuple[int, int]]:
        """Byte ranges between planes, which hold zeros."""
        ends = [plane.offset + plane.bytes for plane in self.planes]
        starts = [plane.offset for plane in self.planes[1:]]
        return [(end, start) for end, start in zip(ends, starts, strict=False) if end < start]


def default_layout(format_name: str, where: str = "tensor") -> str:
    """The layout a format is stored in. Errors: ``ArtifactError`` with ``where`` for an unknown format."""
    return _format(format_name, where).layout


def geometry(format_name: str, layout_name: str, shape: Shape, where: str = "tensor") -> Geometry:
    """The geometry of a tensor.

    Errors: ``ArtifactError`` with ``where`` for an unknown format or layout, a pair that does not go
    together, and a shape the layout cannot hold.
    """
    numeric = _format(format_name, where)
    layout = layouts().get(layout_name)
    if layout is None:
        raise ArtifactError(where, f"layout {shorten(layout_name)!r} is not known")
    if numeric.kind not in layout.kinds:
        raise ArtifactError(where, f"layout {layout_name} does not hold format {format_name}")
    if not layout.rank[0] <= len(shape) <= layout.rank[1]:
        raise ArtifactError(
            where, f"layout {layout_name} needs rank {layout.rank[0]}, shape is {list(shape)}"
        )
    if numeric.kind == "direct":
        return _contiguous(numeric, layout, shape)
    if numeric.kind == "grouped":
        return _row_split(numeric, layout, shape)
    if numeric.kind == "row_scaled":
        return _row_scale(numeric, layout, shape)
    return _block_scale(numeric, layout, shape, where)


def high_bytes(numeric: TensorFormat, layout: TensorLayout) -> int:
    """Bytes of the high plane for one group: the bits of its codes that the base plane has no room for."""
    return numeric.bits * numeric.group // 8 - layout.group_base_bytes


def _format(name: str, where: str) -> TensorFormat:
    numeric = formats().get(name)
    if numeric is None:
        raise ArtifactError(where, f"format {shorten(name)!r} is not known")
    return numeric


def _contiguous(numeric: TensorFormat, layout: TensorLayout, shape: Shape) -> Geometry:
    rows = shape[0] if shape else 1
    columns = math.prod(shape[1:])
    row_bytes = columns * numeric.word_bytes
    plane = Plane("words", 0, rows * row_bytes, row_bytes)
    return Geometry(numeric, layout, shape, rows, columns, (plane,), plane.bytes)


def _row_split(numeric: TensorFormat, layout: TensorLayout, shape: Shape) -> Geometry:
    groups = align_up(shape[1], layout.column_multiple) // numeric.group
    row_bytes = [("base", groups * layout.group_base_bytes)]
    if high := high_bytes(numeric, layout):
        row_bytes.append(("high", groups * high))
    row_bytes.append(("scales", groups * layout.scale_bytes))
    return _stacked(numeric, layout, shape, row_bytes)


def _row_scale(numeric: TensorFormat, layout: TensorLayout, shape: Shape) -> Geometry:
    return _stacked(numeric, layout, shape, [("codes", shape[1]), ("scales", layout.scale_bytes)])


def _stacked(
    numeric: TensorFormat, layout: TensorLayout, shape: Shape, row_bytes: list[tuple[str, int]]
) -> Geometry:
    planes: list[Plane] = []
    end = 0
    for name, per_row in row_bytes:
        planes.append(Plane(name, align_up(end, layout.plane_alignment), shape[0] * per_row, per_row))
        end = planes[-1].offset + planes[-1].bytes
    return Geometry(numeric, layout, shape, shape[0], shape[1], tuple(planes), end)


def _block_scale(numeric: TensorFormat, layout: TensorLayout, shape: Shape, where: str) -> Geometry:
    rows, columns = shape
    tile_columns = layout.tile_groups * numeric.group
    if rows % layout.tile_rows or columns % tile_columns:
        message = f"{layout.name} needs multiples of [{layout.tile_rows}, {tile_columns}], not {list(shape)}"
        raise ArtifactError(where, message)
    block = layout.tile_rows
    codes = Plane("codes", 0, rows * columns // 2, block * columns // 2)
    scale_offset = align_up(codes.bytes, layout.plane_alignment)
    scales = Plane("scales", scale_offset, rows * columns // numeric.group, block * columns // numeric.group)
    divisor = Plane("divisor", scale_offset + scales.bytes, layout.divisor_bytes, 0)
    total = divisor.offset + divisor.bytes
    return Geometry(numeric, layout, shape, rows, columns, (codes, scales, divisor), total, row_block=block)
