"""Encode, decode and validate a block of rows by format. The door of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.codecs import block_scaled, direct, grouped, row_scaled
from ninfer.artifact.codecs.minifloats import U8
from ninfer.artifact.contract import formats
from ninfer.artifact.layouts import Geometry
from ninfer.errors import ArtifactError


def encode_rows(
    format_name: str, rows: NDArray[Any], divisor: np.float32 | None = None
) -> dict[str, NDArray[np.uint8]]:
    """Whole rows [n, K] → bytes per plane, ready to lie behind those of the rows before.

    Takes float32; direct formats take any shape and their own words too (bf16: uint16, int32: int32).
    nvfp4 takes a multiple of 128 rows and the ``divisor`` of the whole parent (``weight_divisor``); its
    divisor plane comes from ``encode_divisor``.
    Errors: ``ArtifactError`` naming format, row and group for values that cannot be stored.
    """
    numeric = formats()[format_name]
    if numeric.kind == "direct":
        return direct.encode(numeric, rows)
    if rows.dtype != np.float32 or rows.ndim != 2:
        raise ArtifactError(format_name, f"needs float32 rows, not {rows.dtype} of rank {rows.ndim}")
    if numeric.kind == "grouped":
        return grouped.encode(numeric, rows)
    if numeric.kind == "row_scaled":
        return row_scaled.encode(numeric, rows)
    if divisor is None:
        raise ArtifactError(format_name, "needs the divisor of the whole parent")
    return block_scaled.encode(numeric, rows, divisor)


def encode_divisor(divisor: np.float32) -> dict[str, NDArray[np.uint8]]:
    """The divisor plane of an nvfp4 object."""
    return {"divisor": np.array([divisor], "<f4").view(np.uint8)}


def decode_rows(geometry: Geometry, planes: Mapping[str, U8], rows: int) -> NDArray[Any]:
    """Bytes per plane of ``rows`` whole rows → a fresh array [rows, columns], float32 (int32 for int32)."""
    numeric = geometry.format
    if numeric.kind == "direct":
        return direct.decode(numeric, planes).reshape(rows, geometry.columns)
    if numeric.kind == "grouped":
        return grouped.decode(numeric, planes, rows, geometry.columns)
    if numeric.kind == "row_scaled":
        return row_scaled.decode(numeric, planes, rows, geometry.columns)
    return block_scaled.decode(numeric, planes, rows, geometry.columns)


def validate_rows(geometry: Geometry, planes: Mapping[str, U8], rows: int) -> str | None:
    """What is illegal in the stored words of ``rows`` whole rows, or None. For tools and tests: the run time
    trusts the writer and never scans a payload.
    """
    numeric = geometry.format
    if numeric.kind == "grouped":
        return grouped.validate(numeric, planes, rows, geometry.columns)
    if numeric.kind == "row_scaled":
        return row_scaled.validate(numeric, planes, rows, geometry.columns)
    if numeric.kind == "block_scaled":
        return block_scaled.validate(numeric, planes, rows, geometry.columns)
    return None
