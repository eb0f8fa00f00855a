"""How each stored weight format becomes float32 vectors inside a kernel.

One function per format returns the 64 weights of a K step as four vectors, each exactly
``float32(scale) · code``. Formats below 8 bits come out even lanes first within 32 (``EVENS_FIRST``): the
nibbles lie that way, and permuting the activations once per call is cheaper than shuffling every row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from ninfer.fast.ops.vector import F16, HAS_VECTOR_PERMUTE, I16, I32, LANES, VF32, VI32, Emitter
from ninfer.fast.ops.vector import F32 as F32_TYPE

STEP = 64  # weights per K step; every resident row is padded to a multiple

# Format numbers of the segment table (ninfer/fast/program/segments.py).
F32, BF16, Q8, Q6, Q5, Q4, FP8, NVFP4 = range(8)
# bf16 words that meet activations rounded to bf16; no stored format of its own.
PAIRS = 8
NAMES = {
    "fp32": F32,
    "bf16": BF16,
    "q8_g32_fp16": Q8,
    "q6_g64_fp16": Q6,
    "q5_g64_fp16": Q5,
    "q4_g64_fp16": Q4,
    "fp8_e4m3fn_row_bf16": FP8,
    "nvfp4": NVFP4,
}
EVENS_FIRST = frozenset({Q6, Q5, Q4, NVFP4})

Planes = tuple[Any, Any, Any]  # addresses of one row's base, high and scale planes
Weights = Callable[[Emitter, Planes, Any], list[Any]]


def f32(e: Emitter, planes: Planes, k: Any) -> list[Any]:
    """Direct float32 words."""
    start = e.at(planes[0], k, 4)
    return [e.load(e.add(start, 4 * LANES * part), "f32") for part in range(4)]


def bf16(e: Emitter, planes: Planes, k: Any) -> list[Any]:
    """Direct bfloat16 words."""
    start = e.at(planes[0], k, 2)
    return [e.load(e.add(start, 2 * LANES * part), "bf16") for part in range(4)]


def q8(e: Emitter, planes: Planes, k: Any) -> list[Any]:
    """Signed bytes, one fp16 scale per 32."""
    start = e.add(planes[0], k)
    scale = e.add(planes[2], e.builder.lshr(k, e.integer(4)))
    scales = [e.splat(e.scalar(e.add(scale, 2 * group), "f16")) for group in range(2)]
    return [e.fmul(e.load(e.add(start, LANES * part), "i8"), scales[part // 2]) for part in range(4)]


def q4(e: Emitter, planes: Planes, k: Any) -> list[Any]:
    """Signed nibbles, one fp16 scale per 64; even lanes first within 32."""
    start, scale = _base_and_scale(e, planes, k)
    vectors = []
    if HAS_VECTOR_PERMUTE:
        table = e.fmul(e.floats([*range(8), *range(-8, 0)]), scale)
        for half in range(2):
            pairs = e.bytes(e.add(start, LANES * half))
            both = (pairs, e.builder.lshr(pairs, e.ints([4] * LANES)))
            vectors += [e.call("llvm.x86.avx512.permvar.sf.512", VF32, table, nibbles) for nibbles in both]
        return vectors
    for half in range(2):
        pairs = e.bytes(e.add(start, LANES * half))
        vectors += [_signed(e, pairs, 28, 28, scale), _signed(e, pairs, 24, 28, scale)]
    return vectors


def q5(e: Emitter, planes: Planes, k: Any) -> list[Any]:
    """Nibbles plus a bit stream of bit 4; one fp16 scale per 64; even lanes first within 32."""
    start, scale = _base_and_scale(e, planes, k)
    high = e.add(planes[1], e.builder.lshr(k, e.integer(3)))
    vectors = []
    for half in range(2):
        low_even, low_odd = _nibbles(e, e.add(start, LANES * half))
        word = e.splat(e.read(e.add(high, 4 * half), VI32.element, 1))
        for low, first in ((low_even, 0), (low_odd, 1)):
            bit = e.builder.and_(e.builder.lshr(word, e.ints(range(first, 32, 2))), e.ints([1] * LANES))
            code = e.builder.or_(low, e.builder.shl(bit, e.ints([4] * LANES)))
            vectors.append(_signed(e, code, 27, 27, scale))
    return vectors


def q6(e: Emitter, planes: Planes, k: Any) -> list[Any]:
    """Nibbles plus a bit stream of bits 4 and 5; one fp16 scale per 64; even lanes first within 32."""
    start, scale = _base_and_scale(e, planes, k)
    high = e.add(planes[1], e.builder.lshr(k, e.integer(2)))
    vectors = []
    for half in range(2):
        low_even, low_odd = _nibbles(e, e.add(start, LANES * half))
        # Lanes 0..15 of the half lie in the first word, 16..31 in the second, two bits each.
        words = [e.splat(e.read(e.add(high, 8 * half + 4 * index), VI32.element, 1)) for index in range(2)]
        word = e.builder.shuffle_vector(*words, e.ints([*range(8), *range(16, 24)]))
        for low, first in ((low_even, 0), (low_odd, 2)):
            shifts = [first + 4 * (lane % 8) for lane in range(LANES)]
            bits = e.builder.and_(e.builder.lshr(word, e.ints(shifts)), e.ints([3] * LANES))
            code = e.builder.or_(low, e.builder.shl(bits, e.ints([4] * LANES)))
            vectors.append(_signed(e, code, 26, 26, scale))
    return vectors


def fp8(e: Emitter, planes: Planes, k: Any) -> list[Any]:
    """E4M3 bytes, one bf16 scale a row."""
    start, builder = e.add(planes[0], k), e.builder
    word = builder.shl(builder.zext(e.read(planes[2], I16, 2), I32), ir.Constant(I32, 16))
    scale = e.splat(builder.bitcast(word, F32_TYPE))
    return [e.fmul(e4m3(e, e.bytes(e.add(start, LANES * part))), scale) for part in range(4)]


def nvfp4(e: Emitter, planes: Planes, k: Any) -> list[Any]:
    """E2M1 pairs, one E4M3 scale per 16, all divided by the object's divisor; even lanes first within 32.

    The high plane is the divisor (a float32, the same of every row). Code times scale is exact, so one
    rounding is left, as in the artifact's own decoding.
    """
    builder = e.builder
    start = e.add(planes[0], builder.lshr(k, e.integer(1)))
    scales = e.splat(e.read(e.add(planes[2], builder.lshr(k, e.integer(4))), I32, 1))
    divisor = e.splat(e.read(planes[1], F32_TYPE, 4))
    vectors = []
    for half in range(2):
        # Lanes 0..7 of both vectors lie in the first group of the 32, lanes 8..15 in the second.
        shifts = [16 * half + 8 * (lane // 8) for lane in range(LANES)]
        scale = e4m3(e, builder.and_(builder.lshr(scales, e.ints(shifts)), e.ints([255] * LANES)))
        codes = _nibbles(e, e.add(start, LANES * half))
        vectors += [builder.fdiv(e.fmul(e2m1(e, nibbles), scale), divisor) for nibbles in codes]
    return vectors


def e4m3(e: Emitter, words: Any) -> Any:
    """Lanes of E4M3 words as float32: a half of the same exponent field is 2^8 too small."""
    builder = e.builder
    sign = builder.shl(builder.and_(words, e.ints([0x80] * LANES)), e.ints([8] * LANES))
    size = builder.shl(builder.and_(words, e.ints([0x7F] * LANES)), e.ints([7] * LANES))
    return _halves(e, builder.or_(sign, size), 2.0**8)


def e2m1(e: Emitter, words: Any) -> Any:
    """Lanes of E2M1 words as float32: a half of the same exponent field is 2^14 too small."""
    if HAS_VECTOR_PERMUTE:
        sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
        table = e.floats([*sizes, *(-size for size in sizes)])
        return e.call("llvm.x86.avx512.permvar.sf.512", VF32, table, words)
    builder = e.builder
    sign = builder.shl(builder.and_(words, e.ints([8] * LANES)), e.ints([12] * LANES))
    size = builder.shl(builder.and_(words, e.ints([7] * LANES)), e.ints([9] * LANES))
    return _halves(e, builder.or_(sign, size), 2.0**14)


def _halves(e: Emitter, words: Any, factor: float) -> Any:
    """Int32 lanes that are bits of halves, as float32 times ``factor``."""
    half = e.builder.bitcast(e.builder.trunc(words, ir.VectorType(I16, LANES)), ir.VectorType(F16, LANES))
    return e.fmul(e.builder.fpext(half, VF32), e.floats([factor] * LANES))


# Bytes of a step's weights in the base plane.
STEP_BYTES: dict[Weights, int] = {
    f32: 256, bf16: 128, q8: 64, q6: 32, q5: 32, q4: 32, fp8: 64, nvfp4: 32
}  # fmt: skip


def _base_and_scale(e: Emitter, planes: Planes, k: Any) -> tuple[Any, Any]:
    base = e.add(planes[0], e.builder.lshr(k, e.integer(1)))
    return base, e.splat(e.scalar(e.add(planes[2], e.builder.lshr(k, e.integer(5))), "f16"))


def _nibbles(e: Emitter, address: Any) -> tuple[Any, Any]:
    pairs = e.bytes(address)
    return e.builder.and_(pairs, e.ints([15] * LANES)), e.builder.lshr(pairs, e.ints([4] * LANES))


def _signed(e: Emitter, code: Any, left: int, right: int, scale: Any) -> Any:
    """The two's-complement field at the top after ``left``, as scale · code."""
    shifted = e.builder.shl(code, e.ints([left] * LANES))
    return e.fmul(e.builder.sitofp(e.builder.ashr(shifted, e.ints([right] * LANES)), VF32), scale)
