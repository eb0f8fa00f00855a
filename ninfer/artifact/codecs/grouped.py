"""Grouped signed integers (q4, q5, q6, q8): codes times one fp16 scale per group along a row.

Owns the reference encoder ``grouped_absmax``, the row_split_k128_v1 packing and the legality of its words.
Source: spec/artifact.yaml#formats and #layouts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.codecs.minifloats import F32, U8
from ninfer.artifact.contract import TensorFormat, align_up, layouts
from ninfer.artifact.layouts import high_bytes
from ninfer.errors import ArtifactError

I8 = NDArray[np.int8]
F16 = NDArray[np.float16]

_SMALLEST_SCALE = np.float16(2.0**-24)


def encode(numeric: TensorFormat, rows: F32) -> dict[str, U8]:
    """Rows [n, K] → planes ``base``, ``high`` (5 and 6 bits) and ``scales``.

    Errors: ``ArtifactError`` naming row and group for values that are not finite or too large for fp16.
    """
    codes, scales = quantize(numeric, rows)
    return pack(numeric, codes, scales)


def decode(numeric: TensorFormat, planes: Mapping[str, U8], rows: int, columns: int) -> F32:
    """Planes of ``rows`` whole rows → float32 [rows, columns]: f32(scale) · code."""
    groups = _groups(numeric, columns)
    values = _codes(numeric, planes, rows, groups).astype(np.float32)
    with np.errstate(invalid="ignore"):  # only words that validate() calls illegal
        values *= planes["scales"].view("<f2").reshape(rows, groups, 1).astype(np.float32)
    return values.reshape(rows, -1)[:, :columns]


def quantize(numeric: TensorFormat, rows: F32) -> tuple[I8, F16]:
    """``grouped_absmax``: codes int8 [n, groups, G] and scales fp16 [n, groups], padding included.

    amax / encoder_max rounds to fp16 (underflow rescued to 2^-24); the reciprocal of that scale multiplies
    every value, ties to even, clamped. All in float32: dividing instead would pick other codes.
    """
    values = _padded_groups(numeric, rows)
    amax = np.abs(values).max(axis=2)
    with np.errstate(over="ignore", under="ignore"):
        scales = (amax / np.float32(numeric.encoder_max)).astype(np.float16)
    scales[(scales == 0) & (amax > 0)] = _SMALLEST_SCALE
    _check_scales(numeric, amax, scales)
    wide = scales.astype(np.float32)
    inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide > 0)
    with np.errstate(under="ignore"):
        values *= inverse[:, :, None]
    np.rint(values, out=values)
    np.clip(values, numeric.code_min, numeric.code_max, out=values)
    return values.astype(np.int8), scales


def pack(numeric: TensorFormat, codes: I8, scales: F16) -> dict[str, U8]:
    """Codes [n, groups, G] and scales [n, groups] → plane bytes."""
    words = codes.view(np.uint8)
    planes = {"base": _base(numeric, words)}
    if high_bytes(numeric, layouts()[numeric.layout]):
        bits = [(words >> np.uint8(bit)) & np.uint8(1) for bit in range(4, numeric.bits)]
        planes["high"] = np.packbits(np.stack(bits, axis=-1).reshape(-1), bitorder="little")
    planes["scales"] = np.ascontiguousarray(scales, "<f2").reshape(-1).view(np.uint8)
    return planes


def validate(numeric: TensorFormat, planes: Mapping[str, U8], rows: int, columns: int) -> str | None:
    """What is illegal in the words of these rows, naming row and group; None when all is well."""
    groups = _groups(numeric, columns)
    codes = _codes(numeric, planes, rows, groups)
    words = planes["scales"].view("<u2").reshape(rows, groups)
    padding = np.arange(groups * numeric.group).reshape(groups, numeric.group) >= columns
    wrong = {
        "scale is negative or not finite": words >= 0x7C00,
        "scale is +0 but a code is not 0": (words == 0) & (codes != 0).any(axis=2),
        f"code is below {numeric.code_min}": (codes < numeric.code_min).any(axis=2),
        "padding code is not 0": ((codes != 0) & padding).any(axis=2),
        "padding group has a scale": (words != 0) & padding.all(axis=1),
    }
    for problem, mask in wrong.items():
        if mask.any():
            row, group = np.argwhere(mask)[0]
            return f"row {row} group {group}: {problem}"
    return None


def _groups(numeric: TensorFormat, columns: int) -> int:
    return align_up(columns, layouts()[numeric.layout].column_multiple) // numeric.group


def _padded_groups(numeric: TensorFormat, rows: F32) -> F32:
    count, columns = rows.shape
    groups = _groups(numeric, columns)
    padded = np.zeros((count, groups * numeric.group), np.float32)
    padded[:, :columns] = rows
    return padded.reshape(count, groups, numeric.group)


def _check_scales(numeric: TensorFormat, amax: F32, scales: F16) -> None:
    wrong = ~np.isfinite(scales)
    if wrong.any():
        row, group = np.argwhere(wrong)[0]
        message = f"row {row} group {group}: max-abs {amax[row, group]} has no finite fp16 scale"
        raise ArtifactError(numeric.name, message)


def _base(numeric: TensorFormat, words: U8) -> U8:
    if numeric.bits == 8:
        return words.reshape(-1)
    low = words[..., 0::2] & np.uint8(15)
    return (low | (words[..., 1::2] << np.uint8(4))).reshape(-1)


def _codes(numeric: TensorFormat, planes: Mapping[str, U8], rows: int, groups: int) -> I8:
    shape = (rows, groups, numeric.group)
    base = planes["base"]
    if numeric.bits == 8:
        return base.view(np.int8).reshape(shape)
    words = np.stack([base & np.uint8(15), base >> np.uint8(4)], axis=-1).reshape(shape)
    if extra := numeric.bits - 4:
        bits = np.unpackbits(planes["high"], bitorder="little").reshape(*shape, extra)
        for bit in range(extra):
            words |= bits[..., bit] << np.uint8(4 + bit)
    # Two's complement of ``bits`` bits: flip the sign bit, then take its weight away.
    sign = 1 << (numeric.bits - 1)
    return (words ^ np.uint8(sign)).view(np.int8) - np.int8(sign)
