"""fp8_e4m3fn_row_bf16: one E4M3FN code an element times one bf16 scale a row.

Owns the reference encoder ``fp8_row_maxabs`` and the legality of the words.
Source: spec/artifact.yaml#formats.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ninfer.artifact.codecs.minifloats import (
    E4M3_MAX,
    E4M3_NAN,
    F32,
    U8,
    bf16_to_float32,
    e4m3_to_float32,
    float32_to_bf16,
    float32_to_e4m3,
)
from ninfer.artifact.contract import TensorFormat
from ninfer.errors import ArtifactError


def encode(numeric: TensorFormat, rows: F32) -> dict[str, U8]:
    """Rows [n, K] → planes ``codes`` and ``scales``.

    Values round to bf16 first; max-abs / 448 rounds to the bf16 scale (underflow rescued to the smallest
    word); the float32 reciprocal of the scale multiplies, clamped to ±448, ties to even.
    Errors: ``ArtifactError`` naming the row for values that are not finite as bf16.
    """
    values = bf16_to_float32(float32_to_bf16(rows))
    amax = np.abs(values).max(axis=1)
    if not np.isfinite(amax).all():
        row = int(np.flatnonzero(~np.isfinite(amax))[0])
        raise ArtifactError(numeric.name, f"row {row}: a value is not finite")
    with np.errstate(under="ignore"):
        words = float32_to_bf16(amax / E4M3_MAX)
    words[(words == 0) & (amax > 0)] = 1
    scales = bf16_to_float32(words)[:, None]
    with np.errstate(over="ignore", divide="ignore"):
        inverse = np.where(scales > 0, np.float32(1) / scales, np.float32(0))
    # A subnormal scale can have an infinite reciprocal, which must not turn zeros into NaN.
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        scaled = np.where(values == 0, values, values * inverse)
    codes = float32_to_e4m3(np.clip(scaled, -E4M3_MAX, E4M3_MAX))
    codes[words == 0] = 0
    return {"codes": codes.reshape(-1), "scales": words.astype("<u2").view(np.uint8)}


def decode(numeric: TensorFormat, planes: Mapping[str, U8], rows: int, columns: int) -> F32:
    """Planes of ``rows`` whole rows → float32 [rows, columns]: code · scale."""
    del numeric
    values = e4m3_to_float32(planes["codes"].reshape(rows, columns))
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        values *= bf16_to_float32(planes["scales"].view("<u2"))[:, None]
    return values


def validate(numeric: TensorFormat, planes: Mapping[str, U8], rows: int, columns: int) -> str | None:
    """What is illegal in the words of these rows, naming the row; None when all is well."""
    del numeric
    magnitudes = planes["codes"].reshape(rows, columns) & np.uint8(0x7F)
    scales = planes["scales"].view("<u2")
    wrong = {
        "a code is NaN": (magnitudes == E4M3_NAN).any(axis=1),
        "scale is negative or not finite": scales >= 0x7F80,
        "scale is +0 but a code is not 0": (scales == 0) & (magnitudes != 0).any(axis=1),
    }
    for problem, mask in wrong.items():
        if mask.any():
            return f"row {int(np.flatnonzero(mask)[0])}: {problem}"
    return None
