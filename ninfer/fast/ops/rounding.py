"""Roundings that must come out alike in compiled kernels and in Triton's interpreter.

The interpreter truncates to bf16 and knows no rint: both go through bits here.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def to_bf16(x):
    """Float32 lanes rounded to the nearest bfloat16, ties to even; finite values. Still float32."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return rounded.to(tl.float32, bitcast=True)


@triton.jit
def bf16_word(x):
    """The bfloat16 word of float32 lanes, as int16."""
    return (to_bf16(x).to(tl.int32, bitcast=True) >> 16).to(tl.int16)


@triton.jit
def nearest(x):
    """Float32 lanes below 2^22 rounded to whole numbers, ties to even."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def e4m3_word(x):
    """The nearest E4M3 word of float32 lanes, saturating at 448, as int32."""
    bits = x.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = tl.minimum(tl.abs(x), 448.0)
    words = size.to(tl.int32, bitcast=True)
    normal = ((words + 0x7FFFF + ((words >> 20) & 1)) >> 20) - 960
    small = nearest(tl.where(size < 0.015625, size, 0.0) * 512.0).to(tl.int32)
    return tl.where(size < 0.015625, small, normal) | sign


@triton.jit
def e2m1_word(x):
    """The nearest E2M1 word of float32 lanes, saturating at 6, as int32; a tie goes to the even word."""
    size = tl.abs(x)
    word = (size > 0.25).to(tl.int32) + (size > 1.25).to(tl.int32) + (size > 2.5).to(tl.int32)
    word += (size > 5.0).to(tl.int32) + (size >= 0.75).to(tl.int32) + (size >= 1.75).to(tl.int32)
    word += (size >= 3.5).to(tl.int32)
    return word | ((x.to(tl.int32, bitcast=True) >> 28) & 8)
