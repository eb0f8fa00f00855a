"""KV rows in their stored encodings, inside Triton kernels: writing one and reading tiles of many.

``spec/kv_formats.yaml`` says what each encoding is; both directions follow it operation by operation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ninfer import spec
from ninfer.fast.ops.rounding import bf16_word, e2m1_word, e4m3_word, nearest

BF16, FP16, INT8, FP8, NVFP4 = range(5)
_BF16, _FP16, _INT8, _FP8, _NVFP4 = (tl.constexpr(number) for number in (BF16, FP16, INT8, FP8, NVFP4))
_NUMBERS = {"bf16": BF16, "fp16": FP16, "int8_g64": INT8, "fp8_row": FP8, "nvfp4_g16": NVFP4}


@dataclass(frozen=True, slots=True)
class Encoding:
    """One plane of a format: its number, whether rows are rotated, word type, words and scales of a row."""

    number: int
    rotated: bool
    words: int
    word_type: torch.dtype
    scales: int
    scale_type: torch.dtype

    @property
    def row_bytes(self) -> int:
        return self.words * self.word_type.itemsize + self.scales * self.scale_type.itemsize


def encoding(kv_format: str, role: str, head_dim: int) -> Encoding:
    """The encoding of ``role`` (``key`` or ``value``) in a format of ``--kv-dtype``."""
    plane = spec.document("kv_formats")["formats"][kv_format][role]
    number = _NUMBERS[plane["encoding"]]
    words = head_dim // 2 if number == NVFP4 else head_dim
    word_type = torch.int16 if number in (BF16, FP16) else torch.int8
    scales = {INT8: head_dim // 64, FP8: 1, NVFP4: head_dim // 16}.get(number, 0)
    scale_type = torch.int8 if number == NVFP4 else torch.float16
    return Encoding(number, bool(plane["rotated"]), words, word_type, scales, scale_type)


@triton.jit
def rotate(x, D: tl.constexpr):
    """The normalised Sylvester-Hadamard transform of ``x`` [D] float32: strides 1, 2, 4, …, then D^-½."""
    x = _butterfly(x, D, 1)
    x = _butterfly(x, D, 2)
    x = _butterfly(x, D, 4)
    x = _butterfly(x, D, 8)
    x = _butterfly(x, D, 16)
    x = _butterfly(x, D, 32)
    if D > 64:
        x = _butterfly(x, D, 64)
    if D > 128:
        x = _butterfly(x, D, 128)
    if D == 64:
        return x * 0.125
    if D == 128:
        return x * 0.08838834764831845
    return x * 0.0625


@triton.jit
def _butterfly(x, D: tl.constexpr, STRIDE: tl.constexpr):
    pairs = tl.permute(tl.reshape(x, (D // (2 * STRIDE), 2, STRIDE)), (0, 2, 1))
    low, high = tl.split(pairs)
    return tl.reshape(tl.permute(tl.join(low + high, low - high), (0, 2, 1)), (D,))


@triton.jit
def store(x, words, scales, slot, ENCODING: tl.constexpr, D: tl.constexpr):
    """One row ``x`` [D] float32 (values of bfloat16, rotated where the format rotates) to its slot."""
    i = tl.arange(0, D)
    if ENCODING == _BF16:
        tl.store(words + slot * D + i, bf16_word(x))
    elif ENCODING == _FP16:
        tl.store(words + slot * D + i, x.to(tl.float16).to(tl.int16, bitcast=True))
    elif ENCODING == _INT8:
        rows = tl.reshape(x, (D // 64, 64))
        scale = tl.div_rn(tl.max(tl.abs(rows), 1), 127.0).to(tl.float16)
        wide = scale.to(tl.float32)
        inverse = tl.where(wide > 0, tl.div_rn(1.0, tl.where(wide > 0, wide, 1.0)), 0.0)
        codes = tl.minimum(tl.maximum(nearest(rows * inverse[:, None]), -127.0), 127.0)
        tl.store(words + slot * D + i, tl.reshape(codes, (D,)).to(tl.int8))
        tl.store(scales + slot * (D // 64) + tl.arange(0, D // 64), scale)
    elif ENCODING == _FP8:
        largest = tl.max(tl.abs(x), 0)
        clamped = tl.minimum(tl.maximum(tl.div_rn(largest, 448.0), 5.9604644775390625e-08), 65504.0)
        wide = clamped.to(tl.float16).to(tl.float32)
        codes = e4m3_word(x * tl.div_rn(1.0, wide))
        tl.store(words + slot * D + i, tl.where(largest > 0, codes, 0).to(tl.int8))
        tl.store(scales + slot, tl.where(largest > 0, wide, 0.0).to(tl.float16))
    else:
        rows = tl.reshape(x, (D // 16, 16))
        largest = tl.max(tl.abs(rows), 1)
        code, scale, error = _nvfp4(rows, largest, 0.1666666716337204)
        for target in tl.static_range(4):
            if target == 0:
                other, also, worse = _nvfp4(rows, largest, 0.25)
            elif target == 1:
                other, also, worse = _nvfp4(rows, largest, 0.2222222238779068)
            elif target == 2:
                other, also, worse = _nvfp4(rows, largest, 0.20000000298023224)
            else:
                other, also, worse = _nvfp4(rows, largest, 0.1818181872367859)
            better = worse < error
            code = tl.where(better[:, None], other, code)
            scale = tl.where(better, also, scale)
            error = tl.where(better, worse, error)
        code = tl.where((largest > 0)[:, None], code, 0)
        even, odd = tl.split(tl.reshape(code, (D // 2, 2)))
        tl.store(words + slot * (D // 2) + tl.arange(0, D // 2), (even | (odd << 4)).to(tl.int8))
        groups = tl.arange(0, D // 16)
        tl.store(scales + slot * (D // 16) + groups, tl.where(largest > 0, scale, 0).to(tl.int8))


@triton.jit
def _nvfp4(rows, largest, inverse_target):
    """Codes [groups, 16], scale words [groups] and squared errors of one target."""
    word = e4m3_word(tl.minimum(tl.maximum(largest * inverse_target, 0.001953125), 448.0))
    scale = _e4m3(word)
    code = e2m1_word(tl.div_rn(rows, tl.broadcast_to(scale[:, None], rows.shape)))
    away = rows - _e2m1(code) * scale[:, None]
    return code, word, tl.sum(away * away, 1)


@triton.jit
def _e4m3(word):
    bits = ((word & 0x80) << 24) | ((word & 0x7F) << 20)
    return bits.to(tl.float32, bitcast=True) * 1.329227995784916e36


@triton.jit
def _e2m1(word):
    bits = ((word & 8) << 28) | ((word & 7) << 22)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37


@triton.jit
def direct(words, ENCODING: tl.constexpr, TYPE: tl.constexpr):
    """16-bit words as numbers of TYPE."""
    if ENCODING == _BF16:
        if TYPE == tl.bfloat16:
            return words.to(tl.bfloat16, bitcast=True)
        return (words.to(tl.int32) << 16).to(tl.float32, bitcast=True).to(TYPE)
    return words.to(tl.float16, bitcast=True).to(TYPE)


@triton.jit
def fp8(words, TYPE: tl.constexpr):
    """E4M3 bytes as numbers of TYPE (fp16 or float32), scales not applied."""
    wide = words.to(tl.int16)
    bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return (bits.to(tl.float16, bitcast=True) * 256.0).to(TYPE)


@triton.jit
def nvfp4(words, scale_words, HIGH: tl.constexpr, TYPE: tl.constexpr):
    """The low or high nibbles of bytes times their E4M3 scales (words of the same shape), as TYPE."""
    nibbles = (words.to(tl.int32) >> 4) & 15 if HIGH else words.to(tl.int32) & 15
    return (_e2m1(nibbles) * _e4m3(scale_words.to(tl.int32) & 255)).to(TYPE)
