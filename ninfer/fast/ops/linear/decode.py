"""Packed weight words become activations inside Triton kernels, one plane at a time.

In bf16 two codes of a 32-bit register are decoded at once, by building the float's bits: a code below 128
or-ed into the fraction of 128.0 is ``128 + code`` exactly (an integer-to-float conversion is four times
slower). ``ninfer.fast.ops.linear.packing`` says where the codes lie. In other activation types (interpreter
tests) the same words are decoded by arithmetic. Minifloat codes are moved into the fields of a bf16, which
is too small by a power of two, and multiplied up; subnormal codes come out right that way too.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Nibbles: (n | 128.0) - (128 + offset), offsets 8, 16 and 32 for 4, 5 and 6 bits.
_NIBBLE = """{{ .reg .b32 t, one, less; shr.u32 t, $1, {shift}; lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
mov.b32 one, 0x3F803F80; mov.b32 less, 0xC308C308; fma.rn.bf16x2 $0, t, one, less; }}"""
# Bytes: (low seven bits | 128.0) - (sign bit | 128.0); the sign bit there is the exponent's last, 256.0.
_BYTE = """{{ .reg .b32 t, a, b, minus; shr.u32 t, $1, {shift}; lop3.b32 a, t, 0x007F007F, 0x43004300, 0xEA;
lop3.b32 b, t, 0x00800080, 0x43004300, 0xEA; mov.b32 minus, 0xBF80BF80; fma.rn.bf16x2 $0, b, minus, a; }}"""
# E4M3: sign to bit 15, exponent and fraction to bits 4..10, times 2^120.
_E4M3 = """{{ .reg .b32 s, m, up, zero; {sign}; and.b32 s, s, 0x80008000; {magnitude};
lop3.b32 m, m, 0x07F007F0, s, 0xEA; mov.b32 up, 0x7B807B80; mov.b32 zero, 0x80008000;
fma.rn.bf16x2 $0, m, up, zero; }}"""
# E2M1: sign to bit 15, exponent and fraction to bits 6..8 (2^-126 too small), times the scale. Codes lie in
# their word so that for three planes of four that is one shift (``packing.E2M1_BITS``). The scale is byte
# (lane mod 4) of its word ($2): E4M3 bits moved into a bf16 (2^-120 too small), times 2^120 and 2^118.
_E2M1 = """{{ .reg .b32 m, t, zero, f, up; mov.u32 t, %laneid; and.b32 t, t, 3;
mad.lo.u32 t, t, 0x101, 0x4040; prmt.b32 f, $2, 0, t; shl.b32 f, f, 4; mov.b32 zero, 0x80008000;
mov.b32 up, 0x7B807B80; fma.rn.bf16x2 f, f, up, zero; mov.b32 up, 0x7A807A80; fma.rn.bf16x2 f, f, up, zero;
{code}; fma.rn.bf16x2 $0, m, f, zero; }}"""
_E2M1_ALIGNED = "shl.b32 m, $1, {left}; and.b32 m, m, 0x81C081C0"
_E2M1_APART = """shr.u32 m, $1, 6; and.b32 m, m, 0x01800180; shr.u32 t, $1, 5;
lop3.b32 m, t, 0x00400040, m, 0xEA; shl.b32 t, $1, 5; lop3.b32 m, t, 0x80008000, m, 0xEA"""
# Four codes: two registers of nibbles ($2, $3), one of high bits, a byte a code ($4).
_WIDE = """{{ .reg .b32 l, h, one, less; mov.b32 one, 0x3F803F80; mov.b32 less, {less};
prmt.b32 h, $4, 0, 0x4140; {move}; shr.u32 l, $2, {shift}; lop3.b32 l, l, 0x000F000F, 0x43004300, 0xEA;
lop3.b32 l, h, {mask}, l, 0xEA; fma.rn.bf16x2 $0, l, one, less;
prmt.b32 h, $4, 0, 0x4342; {move}; shr.u32 l, $3, {shift}; lop3.b32 l, l, 0x000F000F, 0x43004300, 0xEA;
lop3.b32 l, h, {mask}, l, 0xEA; fma.rn.bf16x2 $1, l, one, less; }}"""


def _moved(register: str, source: str, left: int) -> str:
    return f"shl.b32 {register}, {source}, {left}" if left >= 0 else f"shr.u32 {register}, {source}, {-left}"


_NIBBLES = tl.constexpr(tuple(_NIBBLE.format(shift=4 * plane) for plane in range(4)))
_BYTES = tl.constexpr(tuple(_BYTE.format(shift=8 * plane) for plane in range(2)))
_E4M3S = tl.constexpr(
    tuple(
        _E4M3.format(sign=_moved("s", "$1", 8 - 8 * plane), magnitude=_moved("m", "$1", 4 - 8 * plane))
        for plane in range(2)
    )
)
_E2M1S = tl.constexpr(
    tuple(
        _E2M1.format(code=_E2M1_APART if plane == 3 else _E2M1_ALIGNED.format(left=3 * plane))
        for plane in range(4)
    )
)
_SIXES = tl.constexpr(
    tuple(
        _WIDE.format(
            shift=4 * plane, move=_moved("h", "h", 4 - 2 * plane), mask="0x00300030", less="0xC320C320"
        )
        for plane in range(4)
    )
)
_FIVES = tl.constexpr(
    tuple(
        _WIDE.format(shift=4 * (f % 4), move=_moved("h", "h", 4 - f), mask="0x00100010", less="0xC310C310")
        for f in range(8)
    )
)


@triton.jit
def nibble(words, PLANE: tl.constexpr, ACT: tl.constexpr):
    """Codes of 4 bits stored plus 8."""
    if ACT == tl.bfloat16:
        asm: tl.constexpr = _NIBBLES[PLANE]
        return tl.inline_asm_elementwise(asm, "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
    return (((words.to(tl.int32) >> (4 * PLANE)) & 15) - 8).to(ACT)


@triton.jit
def byte(words, PLANE: tl.constexpr, ACT: tl.constexpr):
    """Two's-complement bytes."""
    if ACT == tl.bfloat16:
        asm: tl.constexpr = _BYTES[PLANE]
        return tl.inline_asm_elementwise(asm, "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
    return ((((words.to(tl.int32) >> (8 * PLANE)) & 255) ^ 128) - 128).to(ACT)


@triton.jit
def e4m3(words, PLANE: tl.constexpr, ACT: tl.constexpr):
    """E4M3 bytes."""
    if ACT == tl.bfloat16:
        asm: tl.constexpr = _E4M3S[PLANE]
        return tl.inline_asm_elementwise(asm, "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
    return e4m3_value(words.to(tl.int32) >> (8 * PLANE)).to(ACT)


@triton.jit
def e2m1_lanes(words, scale_words, i, PLANE: tl.constexpr, ACT: tl.constexpr):
    """E2M1 nibbles [N, 64] times their scales: byte ``(i // 2) mod 4`` of ``scale_words`` [N, 1] (E4M3).

    In bf16 the product is 256 times too small: the scale could not carry the whole factor. There the codes
    must lie as the left operand of a 16 x 8 x 16 matrix instruction: element 2t or 2t + 1 of eight belongs to
    lane t of four, so the byte is the lane's own (``tools/gpu_check`` looks at the compiled layout).
    """
    if ACT == tl.bfloat16:
        asm: tl.constexpr = _E2M1S[PLANE]
        words, scale_words = tl.broadcast(words, scale_words)
        return tl.inline_asm_elementwise(
            asm, "=r,r,r,r", [words, scale_words], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    bytes_ = (scale_words >> (((i // 2) % 4) * 8)[None, :]) & 255
    return (e2m1_value(e2m1_code(words, PLANE)) * e4m3_value(bytes_)).to(ACT)


@triton.jit
def e2m1(words, scale, PLANE: tl.constexpr):
    """E2M1 codes times ``scale``, float32."""
    return e2m1_value(e2m1_code(words, PLANE)) * scale


@triton.jit
def e2m1_code(words, PLANE: tl.constexpr):
    """The four bits of a code, from where ``packing.E2M1_BITS`` puts them."""
    w = words.to(tl.int32)
    if PLANE == 3:
        return ((w >> 7) & 8) | ((w >> 12) & 6) | ((w >> 11) & 1)
    return ((w >> (12 - 3 * PLANE)) & 8) | ((w >> (6 - 3 * PLANE)) & 7)


@triton.jit
def wide(words, high, FIELD: tl.constexpr, SIX: tl.constexpr, ACT: tl.constexpr):
    """Codes of 6 or 5 bits (stored plus 32 or 16): a nibble of ``words`` and field FIELD of ``high``."""
    if ACT == tl.bfloat16:
        asm: tl.constexpr = _SIXES[FIELD] if SIX else _FIVES[FIELD]
        return tl.inline_asm_elementwise(
            asm, "=r,=r,r,r,r", [words, high], dtype=tl.bfloat16, is_pure=True, pack=4
        )
    low = (words.to(tl.int32) >> (4 * (FIELD % 4))) & 15
    if SIX:
        code = (low | (((high.to(tl.int32) >> (2 * FIELD)) & 3) << 4)) - 32
    else:
        code = (low | (((high.to(tl.int32) >> FIELD) & 1) << 4)) - 16
    return code.to(ACT)


@triton.jit
def half_of(words, PLACE: tl.constexpr):
    """The fp16 number PLACE of 64-bit words, as float32."""
    return (words >> (16 * PLACE)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def half_at(first, second, PLACE: tl.constexpr):
    """The fp16 number PLACE of two 64-bit words, as float32."""
    if PLACE < 4:
        return half_of(first, PLACE)
    return half_of(second, PLACE - 4)


@triton.jit
def e4m3_value(byte_):
    """E4M3 bytes (the low eight bits of int32 lanes) as float32."""
    bits = ((byte_ & 0x80) << 24) | ((byte_ & 0x7F) << 20)
    return bits.to(tl.float32, bitcast=True) * 1.329227995784916e36


@triton.jit
def e2m1_value(nibble_):
    """E2M1 nibbles (the low four bits of int32 lanes) as float32."""
    bits = ((nibble_ & 8) << 28) | ((nibble_ & 7) << 22)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37
