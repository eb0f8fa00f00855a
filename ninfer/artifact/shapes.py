"""Logical shapes and element ranges of parameters, from the pieces their bindings name.

Pure arithmetic on (object, begin, end); never touches a payload.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ninfer.artifact.directory import Shape, TensorObject
from ninfer.errors import ArtifactError

Piece = tuple[TensorObject, int, int]


def logical_shape(pieces: Sequence[Piece]) -> Shape:
    """The shape a binding has by itself.

    A whole object has its own. Parts that are whole rows of objects with one row shape stack to
    [rows, *row shape]; any other ranges are a flat list of elements.
    """
    first, begin, end = pieces[0]
    if len(pieces) == 1 and (begin, end) == (0, first.elements):
        return first.shape
    row_shape = first.shape[1:]
    if all(tensor.shape[1:] == row_shape and row_range(tensor, b, e) is not None for tensor, b, e in pieces):
        return (_elements(pieces) // math.prod(row_shape), *row_shape)
    return (_elements(pieces),)


def row_range(tensor: TensorObject, begin: int, end: int) -> tuple[int, int] | None:
    """[begin, end) as whole rows (first axis) of the object, or None when it cuts one."""
    columns = math.prod(tensor.shape[1:])
    if begin % columns or end % columns:
        return None
    return begin // columns, end // columns


def resolve(pieces: Sequence[Piece], shape: Shape | None, exact: bool, where: str) -> Shape:
    """The shape to decode to: ``shape`` when given, which must hold exactly the pieces' elements.

    A whole object (``exact``) must have that very shape; parts are a C-order sequence and may take any.
    Errors: ``ArtifactError``.
    """
    found = logical_shape(pieces)
    if shape is None or shape == found:
        return found
    if exact or math.prod(shape) != _elements(pieces):
        raise ArtifactError(where, f"has {list(found)}, the model needs {list(shape)}")
    return shape


def slice_rows(shape: Shape, rows: slice, where: str) -> tuple[int, int, Shape]:
    """A slice of the first axis as an element range and the shape of the result.

    Errors: ``ArtifactError`` for a scalar and for a step other than 1.
    """
    if not shape:
        raise ArtifactError(where, "is a scalar and has no rows")
    first, end, step = rows.indices(shape[0])
    if step != 1:
        raise ArtifactError(where, f"rows come in steps of 1, not {step}")
    end = max(first, end)
    columns = math.prod(shape[1:])
    return first * columns, end * columns, (end - first, *shape[1:])


def cut(pieces: Sequence[Piece], begin: int, end: int) -> tuple[Piece, ...]:
    """The pieces of elements [begin, end) of a parameter."""
    kept = []
    position = 0
    for tensor, first, last in pieces:
        low, high = max(begin - position, 0), min(end - position, last - first)
        if low < high:
            kept.append((tensor, first + low, first + high))
        position += last - first
    return tuple(kept)


def _elements(pieces: Sequence[Piece]) -> int:
    return sum(end - begin for _, begin, end in pieces)
