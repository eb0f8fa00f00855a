"""bf16, fp32 and int32: the exact word, little-endian, in C order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.codecs.minifloats import U8, bf16_to_float32, float32_to_bf16
from ninfer.artifact.contract import TensorFormat
from ninfer.errors import ArtifactError

_WORDS = {"bf16": "<u2", "fp32": "<f4", "int32": "<i4"}


def word_dtype(numeric: TensorFormat) -> np.dtype[Any]:
    """The NumPy type of a stored word; bf16 words are uint16."""
    return np.dtype(_WORDS[numeric.name])


def encode(numeric: TensorFormat, values: NDArray[Any]) -> dict[str, U8]:
    """Rows → the ``words`` plane. bf16 takes float32 (rounded) or uint16 words (kept).

    Errors: ``ArtifactError`` for an element type the format does not take.
    """
    if numeric.name == "bf16" and values.dtype == np.float32:
        values = float32_to_bf16(values)
    if values.dtype != word_dtype(numeric):
        raise ArtifactError(numeric.name, f"cannot be written from {values.dtype} values")
    return {"words": np.ascontiguousarray(values).reshape(-1).view(np.uint8)}


def decode(numeric: TensorFormat, planes: Mapping[str, U8]) -> NDArray[Any]:
    """The ``words`` plane → a fresh flat array: float32, or int32 for int32."""
    words = planes["words"].view(word_dtype(numeric))
    return bf16_to_float32(words) if numeric.name == "bf16" else words.copy()
