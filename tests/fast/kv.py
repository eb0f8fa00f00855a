"""KV rows in numpy straight from ``spec/kv_formats.yaml``, many rows at once: the test's own codec.

Written from the rules, apart from the kernels; ``spec/vectors/kv_formats.json`` checks it too.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ninfer.spec import document

Array = npt.NDArray[Any]
Role = Literal["key", "value"]
KV = document("kv_formats")


def bf16_words(rows: Array) -> Array:
    """Float32 rounded to bf16, ties to even, as uint16."""
    bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_values(words: Array) -> Array:
    """bf16 words as float32."""
    return (words.astype(np.uint32) << 16).view(np.float32)


def hadamard(dim: int, dtype: Any = np.float64) -> Array:
    """The normalised Sylvester-Hadamard matrix [dim, dim]."""
    matrix = np.ones((1, 1))
    while len(matrix) < dim:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return (matrix * dim ** KV["rotation"]["exponent"]).astype(dtype)


def rotate(rows: Array) -> Array:
    """Float32 butterflies of stride 1, 2, 4, …, then one multiplication; rows [..., D]."""
    dim, stride, rows = rows.shape[-1], 1, rows.astype(np.float32)
    while stride < dim:
        pairs = rows.reshape(*rows.shape[:-1], dim // (2 * stride), 2, stride)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        rows = np.stack([low + high, low - high], axis=-2).reshape(rows.shape)
        stride *= 2
    return rows * np.float32(dim ** KV["rotation"]["exponent"])


def is_rotated(format_name: str, role: Role) -> bool:
    """Whether the format rotates this role before it encodes."""
    return bool(KV["formats"][format_name][role]["rotated"])


def encode(format_name: str, role: Role, rows: Array) -> tuple[Array, Array]:
    """Codes [..., D] and scales [..., D / group] (empty without) of float32 rows [..., D]."""
    plane = KV["formats"][format_name][role]
    if format_name != "float32":
        rows = bf16_values(bf16_words(rows))
    return encode_plane(plane["encoding"], rotate(rows) if plane["rotated"] else rows)


def encode_plane(encoding: str, rows: Array) -> tuple[Array, Array]:
    """One encoding without rounding to bf16 and without rotation."""
    rule = KV["encodings"][encoding]
    none = np.empty((*rows.shape[:-1], 0), np.float16)
    if rule["rule"] == "direct":
        words = {"float32": lambda r: r.astype(np.float32), "bf16": bf16_words, "fp16": np.float16}
        return np.asarray(words[rule["code_type"]](rows)), none
    assert rule["rule"] == "absmax", f"{encoding} has no kernel yet"
    groups = rows.reshape(*rows.shape[:-1], -1, rule["group"])
    scales = (np.abs(groups).max(-1) / np.float32(rule["target"])).astype(np.float16)
    wide = scales.astype(np.float32)
    inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide > 0)
    codes = np.clip(np.rint(groups * inverse[..., None]), -rule["target"], rule["target"])
    return codes.astype(np.int8).reshape(rows.shape), scales


def decode(format_name: str, role: Role, codes: Array, scales: Array) -> Array:
    """The stored rows in float64; rotated keys stay rotated."""
    encoding = KV["encodings"][KV["formats"][format_name][role]["encoding"]]
    if encoding["code_type"] == "bf16":
        return bf16_values(codes).astype(np.float64)
    values = codes.astype(np.float64)
    if "group" not in encoding:
        return values
    groups = values.reshape(*values.shape[:-1], -1, encoding["group"])
    return np.asarray((groups * scales.astype(np.float64)[..., None]).reshape(values.shape))


def round_trip(format_name: str, role: Role, rows: Array) -> Array:
    """What a row reads back as, in its own basis, float64."""
    values = decode(format_name, role, *encode(format_name, role, rows))
    return values @ hadamard(rows.shape[-1]) if is_rotated(format_name, role) else values
