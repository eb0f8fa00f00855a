"""KV rows in numpy straight from ``spec/kv_formats.yaml``, many rows at once: the test's own codec.

Written from the rules, apart from the kernels; ``spec/vectors/kv_formats.json`` checks it too.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

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
    if rule["rule"] == "absmax_float":
        return _fp8_rows(rows, rule)
    if rule["rule"] == "best_target":
        return _nvfp4_rows(rows, rule)
    assert rule["rule"] == "absmax", f"{encoding} has no kernel yet"
    groups = rows.reshape(*rows.shape[:-1], -1, rule["group"])
    scales = (np.abs(groups).max(-1) / np.float32(rule["target"])).astype(np.float16)
    wide = scales.astype(np.float32)
    inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide > 0)
    codes = np.clip(np.rint(groups * inverse[..., None]), -rule["target"], rule["target"])
    return codes.astype(np.int8).reshape(rows.shape), scales


def _e4m3(rows: Array) -> Array:
    """The E4M3 words of float32 values, saturating, as uint8."""
    limited = torch.from_numpy(np.clip(rows, -448, 448).astype(np.float32))
    return limited.to(torch.float8_e4m3fn).view(torch.uint8).numpy()


def _e4m3_values(words: Array) -> Array:
    """E4M3 words as float32."""
    return torch.from_numpy(words.copy()).view(torch.float8_e4m3fn).float().numpy()


def _fp8_rows(rows: Array, rule: Any) -> tuple[Array, Array]:
    largest = np.abs(rows).max(-1, keepdims=True)
    clamped = np.clip(largest / np.float32(rule["target"]), rule["scale_min"], rule["scale_max"])
    scales = np.where(largest > 0, clamped, 0).astype(np.float16)
    wide = np.where(largest > 0, scales, 1).astype(np.float32)
    codes = _e4m3(rows * (np.float32(1) / wide))
    return np.where(largest > 0, codes, np.uint8(0)), scales


_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def _e2m1(rows: Array) -> Array:
    """The E2M1 words of float32 values, saturating, ties to the even word."""
    middles, size = (_E2M1[1:] + _E2M1[:-1]) / 2, np.abs(rows)
    words = (size[..., None] > middles).sum(-1) + ((size[..., None] == middles) * (np.arange(7) % 2)).sum(-1)
    return words + 8 * np.signbit(rows)


def _e2m1_values(words: Array) -> Array:
    """E2M1 words as float32."""
    return np.where(words & 8, -1, 1).astype(np.float32) * _E2M1[words & 7]


def _halved_sum(rows: Array) -> Array:
    """The float32 sum of the last axis by a tree of halves; near ties of targets hang on its order."""
    while rows.shape[-1] > 1:
        half = rows.shape[-1] // 2
        rows = rows[..., :half] + rows[..., half:]
    return rows


def _nvfp4_rows(rows: Array, rule: Any) -> tuple[Array, Array]:
    groups = rows.astype(np.float32).reshape(*rows.shape[:-1], -1, rule["group"])
    largest = np.abs(groups).max(-1, keepdims=True)
    best: tuple[Array, Array, Array] | None = None
    for target in rule["targets"]:
        wanted = largest * (np.float32(1) / np.float32(target))
        scales = _e4m3(np.clip(wanted, np.float32(rule["scale_min"]), np.float32(rule["scale_max"])))
        step = _e4m3_values(scales)
        codes = _e2m1(groups / step)
        error = _halved_sum((groups - _e2m1_values(codes) * step) ** 2)
        if best is None:
            best = (codes, scales, error)
        else:
            better = error < best[2]
            best = tuple(np.where(better, a, b) for a, b in zip((codes, scales, error), best, strict=True))  # type: ignore[assignment]
    assert best is not None
    codes, scales = (np.where(largest > 0, part, 0).astype(np.uint8) for part in best[:2])
    flat = codes.reshape(rows.shape)
    return flat[..., ::2] | (flat[..., 1::2] << 4), scales[..., 0]


def decode(format_name: str, role: Role, codes: Array, scales: Array) -> Array:
    """The stored rows in float64; rotated keys stay rotated."""
    encoding = KV["encodings"][KV["formats"][format_name][role]["encoding"]]
    if encoding["code_type"] == "bf16":
        return bf16_values(codes).astype(np.float64)
    if encoding["code_type"] == "e2m1":
        words = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)
        steps = np.repeat(_e4m3_values(scales).astype(np.float64), encoding["group"], -1)
        return _e2m1_values(words).astype(np.float64) * steps
    if encoding["code_type"] == "e4m3fn":
        return _e4m3_values(codes).astype(np.float64) * scales.astype(np.float64)
    values = codes.astype(np.float64)
    if "group" not in encoding:
        return values
    groups = values.reshape(*values.shape[:-1], -1, encoding["group"])
    return np.asarray((groups * scales.astype(np.float64)[..., None]).reshape(values.shape))


def round_trip(format_name: str, role: Role, rows: Array) -> Array:
    """What a row reads back as, in its own basis, float64."""
    values = decode(format_name, role, *encode(format_name, role, rows))
    return values @ hadamard(rows.shape[-1]) if is_rotated(format_name, role) else values
