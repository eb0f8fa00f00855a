"""KV rows encoded one value at a time from ``spec/kv_formats.yaml``: the maker of its golden vectors.

    python -m tests.spec.kv_rows   # rewrites spec/vectors/kv_formats.json

Slow and plain on purpose: every code is the nearest of all values of its type, found by looking at each.
The two vector-quantised encodings are not here; they come with their codebook.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.spec import document

F32 = npt.NDArray[np.float32]
KV = document("kv_formats")
VECTORS = Path(__file__).parents[2] / "spec/vectors/kv_formats.json"
SOURCE = (
    "rules of kv_formats.yaml, one value at a time; roundings equal numpy float16 and torch float8_e4m3fn"
)


@dataclass(frozen=True, slots=True)
class SmallFloat:
    """A type of few bits: its non-negative values in code order, finite ones only."""

    values: tuple[float, ...]
    sign: int

    def encode(self, x: float) -> int:
        """The nearest code, ties to the even one, saturating; the sign survives on zero."""
        size = abs(float(x))
        code = min(range(len(self.values)), key=lambda c: (abs(self.values[c] - size), c % 2))
        return code | (self.sign if np.signbit(x) else 0)

    def decode(self, code: int) -> np.float32:
        """The value of ``code``."""
        size = self.values[code & (self.sign - 1)]
        return np.float32(-size if code & self.sign else size)


def _floats(exponent_bits: int, mantissa_bits: int, bias: int, count: int) -> tuple[float, ...]:
    values = []
    for code in range(count):
        exponent, mantissa = divmod(code, 2**mantissa_bits)
        fraction = mantissa / 2**mantissa_bits
        values.append((1 + fraction) * 2.0 ** (exponent - bias) if exponent else fraction * 2.0 ** (1 - bias))
    assert exponent < 2**exponent_bits
    return tuple(values)


E4M3FN = SmallFloat(_floats(4, 3, 7, 127), 0x80)  # code 127 is NaN
E2M1 = SmallFloat(_floats(2, 1, 1, 8), 0x8)


def rotate(row: F32) -> F32:
    """The row times the scaled Hadamard matrix: float32 butterflies, then one multiplication."""
    row, stride = row.copy(), 1
    while stride < len(row):
        for start in range(0, len(row), 2 * stride):
            low, high = row[start : start + stride].copy(), row[start + stride : start + 2 * stride].copy()
            row[start : start + stride], row[start + stride : start + 2 * stride] = low + high, low - high
        stride *= 2
    return row * np.float32(len(row) ** KV["rotation"]["exponent"])


def encode(name: str, row: F32) -> tuple[bytes, bytes]:
    """Code bytes and scale bytes of a row [D]."""
    return _ENCODERS[name](row, KV["encodings"][name])


def _direct_fp16(row: F32, _: dict[str, Any]) -> tuple[bytes, bytes]:
    return row.astype("<f2").tobytes(), b""


def _int8(row: F32, rule: dict[str, Any]) -> tuple[bytes, bytes]:
    codes, scales = bytearray(), bytearray()
    for group in row.reshape(-1, rule["group"]):
        scale = np.float16(np.abs(group).max() / np.float32(rule["target"]))
        inverse = np.float32(1) / np.float32(scale) if scale else np.float32(0)
        for x in group:
            code = int(np.clip(np.rint(x * inverse), -rule["target"], rule["target"]))
            codes.append(code % 256)
        scales += scale.astype("<f2").tobytes()
    return bytes(codes), bytes(scales)


def _fp8(row: F32, rule: dict[str, Any]) -> tuple[bytes, bytes]:
    largest = np.abs(row).max()
    if not largest:
        return bytes(len(row)), bytes(2)
    clamped = np.clip(largest / np.float32(rule["target"]), rule["scale_min"], rule["scale_max"])
    scale = np.float16(np.float32(clamped))
    inverse = np.float32(1) / np.float32(scale)
    return bytes(E4M3FN.encode(x * inverse) for x in row), scale.astype("<f2").tobytes()


def _nvfp4(row: F32, rule: dict[str, Any]) -> tuple[bytes, bytes]:
    codes, scales = bytearray(), bytearray()
    for group in row.reshape(-1, rule["group"]):
        best, scale = _best_target(group, rule)
        codes += bytes(low | high << 4 for low, high in zip(best[::2], best[1::2], strict=True))
        scales.append(scale)
    return bytes(codes), bytes(scales)


def _best_target(group: F32, rule: dict[str, Any]) -> tuple[Sequence[int], int]:
    largest = np.abs(group).max()
    if not largest:
        return [0] * len(group), 0
    tried: list[tuple[float, Sequence[int], int]] = []
    for target in rule["targets"]:
        wanted = largest * (np.float32(1) / np.float32(target))
        scale = E4M3FN.encode(np.clip(wanted, rule["scale_min"], rule["scale_max"]))
        step = E4M3FN.decode(scale)
        codes = [E2M1.encode(x / step) for x in group]
        error = sum((float(x) - float(E2M1.decode(c) * step)) ** 2 for x, c in zip(group, codes, strict=True))
        tried.append((error, codes, scale))
    least = min(error for error, _, _ in tried)
    if any(least < error <= least * (1 + 1e-5) for error, _, _ in tried):
        raise ValueError("a near tie of targets: its winner would hang on the order of summation")
    return next((codes, scale) for error, codes, scale in tried if error == least)


_ENCODERS: dict[str, Callable[[F32, dict[str, Any]], tuple[bytes, bytes]]] = {
    "fp16": _direct_fp16,
    "int8_g64": _int8,
    "fp8_row": _fp8,
    "nvfp4_g16": _nvfp4,
}


def rows(head_dim: int) -> dict[str, F32]:
    """Named bf16 rows [D] as float32."""
    generator = np.random.default_rng(head_dim)
    normal = generator.standard_normal(head_dim).astype(np.float32)
    spread = normal * np.float32(2.0) ** generator.integers(-12, 6, head_dim).astype(np.float32)
    tiny = normal * np.float32(2.0**-26)
    named = {"normal": normal, "wide range": spread, "tiny": tiny, "zero": np.zeros(head_dim, np.float32)}
    return {name: bf16(row) for name, row in named.items()}


def bf16(row: F32) -> F32:
    """Rounded to bf16, ties to even, still as float32."""
    bits = row.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32)


def cases() -> list[dict[str, Any]]:
    """Every encoding as the formats use it, at every head dimension."""
    planes = {
        (row[role]["encoding"], row[role]["rotated"])
        for row in KV["formats"].values()
        for role in ("key", "value")
    }
    made = []
    for head_dim in KV["head_dims"]:
        for name, row in rows(head_dim).items():
            for encoding, rotated in sorted(planes):
                if encoding not in _ENCODERS:
                    continue
                codes, scales = encode(encoding, rotate(row) if rotated else row)
                words = (row.view(np.uint32) >> 16).astype("<u2").tobytes()
                made.append(
                    {
                        "name": f"{name} row of {head_dim}",
                        "input": {"encoding": encoding, "rotated": rotated, "bf16": words.hex()},
                        "expected": {"codes": codes.hex(), "scales": scales.hex()},
                    }
                )
    return made


def text() -> str:
    """The vectors as they are committed: one case a line."""
    lines = ",\n".join("  " + json.dumps(case) for case in cases())
    return f'{{"source": {json.dumps(SOURCE)}, "cases": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    VECTORS.write_text(text(), encoding="utf-8")
