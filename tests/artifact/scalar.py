"""One value at a time, straight from the definitions: what the vectorised codecs are compared with.

Pure Python on exact fractions and ``struct``; shares nothing with ``ninfer.artifact.codecs``.
"""

from __future__ import annotations

import bisect
import math
import struct
from collections.abc import Iterable, Sequence
from fractions import Fraction

GROUPED = {  # bits, group, smallest code, largest code, base bytes a group, high bytes a group
    "q4_g64_fp16": (4, 64, -8, 7, 32, 0),
    "q5_g64_fp16": (5, 64, -16, 15, 32, 8),
    "q6_g64_fp16": (6, 64, -32, 31, 32, 16),
    "q8_g32_fp16": (8, 32, -127, 127, 32, 0),
}


def f32(value: float) -> float:
    """The nearest float32; infinity where there is none."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def f16(value: float) -> float:
    """The nearest float16 of a float32; infinity where there is none."""
    try:
        return float(struct.unpack("<e", struct.pack("<e", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def f16_of(raw: bytes) -> float:
    return float(struct.unpack("<e", raw)[0])


def f32_of(raw: bytes) -> float:
    return float(struct.unpack("<f", raw)[0])


def bf16_of(raw: bytes) -> float:
    return f32_of(b"\0\0" + raw)


def e4m3_of(word: int) -> float:
    """Exponent bias 7, three fraction bits, no infinity, NaN where all seven low bits are set."""
    sign = -1.0 if word & 0x80 else 1.0
    exponent, fraction = word >> 3 & 15, word & 7
    if exponent == 15 and fraction == 7:
        return math.nan
    if exponent == 0:
        return sign * fraction * 2.0**-9
    return sign * (1 + fraction / 8) * 2.0 ** (exponent - 7)


def e2m1_of(word: int) -> float:
    """Exponent bias 1, one fraction bit."""
    sign = -1.0 if word & 8 else 1.0
    exponent, fraction = word >> 1 & 3, word & 1
    return sign * (fraction / 2 if exponent == 0 else (1 + fraction / 2) * 2.0 ** (exponent - 1))


_E4M3 = [e4m3_of(word) for word in range(0x7F)]
_E2M1 = [e2m1_of(word) for word in range(8)]


def nearest_word(value: float, magnitudes: Sequence[float], sign_bit: int) -> int:
    """The word whose magnitude (ascending) is nearest; a tie to the even word, beyond the last that one."""
    exact = Fraction(abs(value))
    above = bisect.bisect_left(magnitudes, abs(value))
    near = range(max(above - 1, 0), min(above + 1, len(magnitudes)))
    best = min(near, key=lambda word: (abs(Fraction(magnitudes[word]) - exact), word & 1))
    return best | (sign_bit if math.copysign(1, value) < 0 else 0)


def to_e4m3(value: float) -> int:
    return nearest_word(value, _E4M3, 0x80)


def to_e2m1(value: float) -> int:
    return nearest_word(value, _E2M1, 8)


def to_bf16(value: float) -> bytes:
    """The two neighbours among all bf16 words are the truncated one and the next; ties to even."""
    word = struct.unpack("<I", struct.pack("<f", value))[0]
    low = word >> 16
    below, above = bf16_of(struct.pack("<H", low)), bf16_of(struct.pack("<H", low + 1))
    if math.isinf(above):  # the neighbour of the largest word stands for twice its binade
        above = math.copysign(2.0**128, above)
    to_below, to_above = (abs(Fraction(value) - Fraction(edge)) for edge in (below, above))
    up = to_above < to_below or (to_above == to_below and low & 1)
    return struct.pack("<H", low + 1 if up else low)


def align(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple


def decode_grouped(name: str, raw: bytes, rows: int, columns: int) -> list[list[float]]:
    """row_split_k128_v1 lane by lane."""
    bits, group, _, _, base_bytes, high_bytes = GROUPED[name]
    groups = align(columns, 128) // group
    base_end = rows * groups * base_bytes
    high_start = align(base_end, 256)
    scale_start = high_start + align(rows * groups * high_bytes, 256)
    out = []
    for row in range(rows):
        values = []
        for column in range(columns):
            index, lane = row * groups + column // group, column % group
            word = _lane(raw, bits, lane, index * base_bytes, high_start + index * high_bytes)
            code = word - (1 << bits) if word >> (bits - 1) else word
            start = scale_start + 2 * index
            values.append(f32(f16_of(raw[start : start + 2]) * code))
        out.append(values)
    return out


def _lane(raw: bytes, bits: int, lane: int, base: int, high: int) -> int:
    if bits == 8:
        return raw[base + lane]
    word = raw[base + lane // 2] >> (4 * (lane % 2)) & 15
    for bit in range(4, bits):
        stream = lane * (bits - 4) + bit - 4
        word |= (raw[high + stream // 8] >> (stream % 8) & 1) << bit
    return word


def encode_grouped(name: str, rows: Sequence[Sequence[float]]) -> list[list[tuple[float, list[int]]]]:
    """``grouped_absmax``: per row and logical group the scale and its codes."""
    _, group, smallest, largest, _, _ = GROUPED[name]
    out = []
    for row in rows:
        groups = []
        for start in range(0, len(row), group):
            values = row[start : start + group]
            amax = max(abs(value) for value in values)
            if amax == 0:
                groups.append((0.0, [0] * len(values)))
                continue
            scale = f16(f32(amax / largest)) or 2.0**-24
            inverse = f32(1 / scale)
            codes = [min(max(round(f32(value * inverse)), smallest), largest) for value in values]
            groups.append((scale, codes))
        out.append(groups)
    return out


def decode_fp8(raw: bytes, rows: int, columns: int) -> list[list[float]]:
    start = align(rows * columns, 256)
    return [
        [
            f32(e4m3_of(raw[row * columns + k]) * bf16_of(raw[start + 2 * row : start + 2 * row + 2]))
            for k in range(columns)
        ]
        for row in range(rows)
    ]


def encode_fp8(row: Iterable[float]) -> tuple[bytes, list[int]]:
    """``fp8_row_maxabs`` of one row: bf16 scale and codes."""
    values = [bf16_of(to_bf16(value)) for value in row]
    amax = max(abs(value) for value in values)
    if amax == 0:
        return b"\0\0", [0] * len(values)
    scale = to_bf16(f32(amax / 448))
    if scale == b"\0\0":
        scale = b"\1\0"
    inverse = f32(1 / bf16_of(scale))
    codes = []
    for value in values:
        scaled = 0.0 * value if value == 0 else f32(value * inverse)
        codes.append(to_e4m3(max(min(scaled, 448.0), -448.0)))
    return scale, codes


def nvfp4_scale_at(row: int, group: int, columns: int) -> int:
    """Where the scale of (row, group) lies in its plane."""
    tile = row // 128 * (columns // 64) + group // 4
    return tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + group % 4


def decode_nvfp4(raw: bytes, rows: int, columns: int, wanted: Iterable[tuple[int, int]]) -> list[float]:
    """The values at the wanted (row, column) pairs."""
    scales = align(rows * columns // 2, 256)
    divisor = f32_of(raw[-4:])
    out = []
    for row, column in wanted:
        code = raw[(row * columns + column) // 2] >> (4 * (column % 2)) & 15
        scale = e4m3_of(raw[scales + nvfp4_scale_at(row, column // 16, columns)])
        out.append(f32(f32(e2m1_of(code) * scale) / divisor))
    return out


def encode_nvfp4_group(values: Sequence[float], divisor: float) -> tuple[int, list[int]]:
    """``nvfp4_absmax`` of one group of 16: scale word and codes."""
    scaled = [f32(value * divisor) for value in values]
    word = to_e4m3(min(f32(max(abs(value) for value in scaled) / 6), 448.0))
    scale = e4m3_of(word)
    if scale == 0:
        return word, [0] * len(values)
    return word, [to_e2m1(f32(value / scale)) for value in scaled]
