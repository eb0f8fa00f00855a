"""nvfp4: E2M1 codes times an E4M3FN scale per 16 columns, divided by one float32 divisor per object.

Owns the reference encoder ``nvfp4_absmax``, the scale swizzle of block_scale_k16_m128x4_v1 and the legality
of the words. Rows come in whole tiles of 128. Source: spec/artifact.yaml#formats and #layouts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ninfer.artifact.codecs.minifloats import (
    E2M1_MAX,
    E4M3_MAX,
    E4M3_NAN,
    F32,
    U8,
    e2m1_to_float32,
    e4m3_to_float32,
    float32_to_e2m1,
    float32_to_e4m3,
)
from ninfer.artifact.contract import TensorFormat, layouts
from ninfer.errors import ArtifactError


def weight_divisor(amax: float) -> np.float32:
    """The divisor that puts the largest group scale of a parent at 448: f32(2688 / max-abs), 1 for zeros.

    Errors: ``ArtifactError`` when it is not finite and positive.
    """
    if amax == 0:
        return np.float32(1)
    with np.errstate(over="ignore"):
        divisor = E2M1_MAX * E4M3_MAX / np.float32(amax)
    if not (np.isfinite(divisor) and divisor > 0):
        raise ArtifactError("nvfp4", f"max-abs {amax} has no finite positive divisor")
    return np.float32(divisor)


def encode(numeric: TensorFormat, rows: F32, divisor: np.float32) -> dict[str, U8]:
    """Rows [n, K] → planes ``codes`` and ``scales`` under the parent's ``divisor``.

    Errors: ``ArtifactError`` naming row and group for values that are not finite once multiplied.
    """
    count, columns = rows.shape
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        values = rows.reshape(count, -1, numeric.group) * divisor
        amax = np.abs(values).max(axis=2)
    if not np.isfinite(amax).all():
        row, group = np.argwhere(~np.isfinite(amax))[0]
        raise ArtifactError(numeric.name, f"row {row} group {group}: a value is not finite")
    with np.errstate(under="ignore"):
        scales = float32_to_e4m3(np.minimum(amax / E2M1_MAX, E4M3_MAX))
    wide = e4m3_to_float32(scales)[:, :, None]
    with np.errstate(under="ignore"):
        scaled = np.divide(values, wide, out=np.zeros_like(values), where=wide > 0)
    codes = float32_to_e2m1(scaled).reshape(count, columns)
    packed = codes[:, 0::2] | (codes[:, 1::2] << np.uint8(4))
    return {"codes": packed.reshape(-1), "scales": swizzle(numeric, scales)}


def decode(numeric: TensorFormat, planes: Mapping[str, U8], rows: int, columns: int) -> F32:
    """Planes of whole row tiles → float32 [rows, columns]: code · scale / divisor."""
    packed = planes["codes"]
    codes = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)
    values = e2m1_to_float32(codes).reshape(rows, -1, numeric.group)
    with np.errstate(all="ignore"):
        values *= e4m3_to_float32(unswizzle(numeric, planes["scales"], rows, columns))[:, :, None]
        values /= planes["divisor"].view("<f4")
    return values.reshape(rows, columns)


def swizzle(numeric: TensorFormat, scales: U8) -> U8:
    """Natural scales [n, K/16] → plane bytes in tiles of 128 rows and 4 groups."""
    layout = layouts()[numeric.layout]
    quarters = layout.tile_rows // layout.tile_lane_rows
    tiles = scales.reshape(-1, quarters, layout.tile_lane_rows, scales.shape[1] // layout.tile_groups, 4)
    return np.ascontiguousarray(tiles.transpose(0, 3, 2, 1, 4)).reshape(-1)


def unswizzle(numeric: TensorFormat, plane: U8, rows: int, columns: int) -> U8:
    """Plane bytes of whole tiles → natural scales [rows, columns / 16]."""
    layout = layouts()[numeric.layout]
    quarters = layout.tile_rows // layout.tile_lane_rows
    groups = columns // numeric.group
    tiles = plane.reshape(
        -1, groups // layout.tile_groups, layout.tile_lane_rows, quarters, layout.tile_groups
    )
    return tiles.transpose(0, 3, 2, 1, 4).reshape(rows, groups)


def validate(numeric: TensorFormat, planes: Mapping[str, U8], rows: int, columns: int) -> str | None:
    """What is illegal in the words of these rows, naming row and group; None when all is well."""
    divisor = planes["divisor"].view("<f4")[0]
    if not (np.isfinite(divisor) and divisor > 0):
        return f"divisor {divisor} is not finite and positive"
    scales = unswizzle(numeric, planes["scales"], rows, columns)
    wrong = scales >= E4M3_NAN
    if wrong.any():
        row, group = np.argwhere(wrong)[0]
        return f"row {row} group {group}: scale is negative or NaN"
    return None
