"""Weights in the order in which the GPU kernels stream them: pure functions over tensors of any device.

Codes lie in panels of PANEL rows. Inside a panel, one step of K after the other; inside a step, row after
row: a tile of whole panels is one run of memory. A 16-bit word holds the codes of 2 or 4 *planes*: element i
of plane j is the code at ``step + extent · j + i``, so that decoding a plane is a shift and a mask and the
planes are separate matrix products (no lane ever moves). Scales lie as 64-bit words of 4 fp16 or 8 e4m3.

| format | plane extent | planes a word | K of a step | high plane | scale word covers |
|---|---|---|---|---|---|
| fp8 | 64 | 2 bytes | 128 | | (one a row) |
| q8 | 32 (a group) | 2 bytes | 64 | | K 128 |
| q6, q5, q4 | 64 (a group) | 4 nibbles | 256 | 2 bits a code (q6, K 256), 1 bit (q5, K 512) | K 256 |
| nvfp4 | 64 (4 groups, lane by lane: ``_order``) | 4 codes (``E2M1_BITS``) | 256 | | K 128 |

bf16 stays as it is, [N, K] with K contiguous. N is padded to ROW_STEP and K to ``k_step`` with zero scales.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

BF16, FP8, Q8, Q6, Q5, Q4, NVFP4 = range(7)
NAMES = {
    "bf16": BF16,
    "fp8_e4m3fn_row_bf16": FP8,
    "q8_g32_fp16": Q8,
    "q6_g64_fp16": Q6,
    "q5_g64_fp16": Q5,
    "q4_g64_fp16": Q4,
    "nvfp4": NVFP4,
}
PANEL, ROW_STEP = 64, 128
# Places in an nvfp4 word of each plane's code, bit 0 (fraction) to bit 3 (sign): in the first three planes
# they stand to each other as the sign, exponent and fraction of a bf16 do.
E2M1_BITS = ((6, 7, 8, 15), (3, 4, 5, 12), (0, 1, 2, 9), (11, 13, 14, 10))
# The bits of a code, and what is added to a two's-complement code so that it is stored as a number from 0 on.
BITS = {Q6: 6, Q5: 5, Q4: 4}


def k_step(number: int) -> int:
    """K is padded to a multiple of this: what one loop iteration of the kernel takes in."""
    return 512 if number == Q5 else 256


def padded(size: int, step: int) -> int:
    """``size`` rounded up to a multiple of ``step``."""
    return -(-size // step) * step


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A matrix [rows, columns] on one device; ``width`` is its padded K.

    ``words``: bf16 [N, K] or int16 panels; ``high``: int8 panels (5 and 6 bits); ``scales``: int64 words;
    ``row_scales``: float32 [N] where a whole row shares a factor. Absent parts are empty.
    """

    format: int
    rows: int
    columns: int
    width: int
    words: Tensor
    high: Tensor
    scales: Tensor
    row_scales: Tensor

    @property
    def bytes(self) -> int:
        """Memory of all planes."""
        return sum(
            t.numel() * t.element_size() for t in (self.words, self.high, self.scales, self.row_scales)
        )

    @property
    def padded_rows(self) -> int:
        return padded(self.rows, ROW_STEP)


def pack_bf16(weights: Tensor) -> Packed:
    """``weights`` [N, K] bfloat16."""
    rows, columns = weights.shape
    words = _pad(weights, padded(rows, ROW_STEP), padded(columns, k_step(BF16)))
    empty = words.new_empty(0)
    return Packed(
        BF16, rows, columns, words.shape[1], words.contiguous(), _none(empty), _longs(empty), _floats(empty)
    )


def pack_grouped(number: int, codes: Tensor, scales: Tensor) -> Packed:
    """Signed ``codes`` [N, K] int8 and ``scales`` [N, K / group] float16 (q8, q6, q5, q4)."""
    rows, columns = codes.shape
    group = 32 if number == Q8 else 64
    height, width = padded(rows, ROW_STEP), padded(columns, k_step(number))
    codes = _pad(codes, height, width)
    scales = _pad(scales, height, width // group)
    high = codes.new_empty(0)
    if number == Q8:
        words = _interleave(codes.to(torch.int32) & 255, extent=32, planes=2)
        words_per_scale = 128
    else:
        unsigned = codes.to(torch.int32) + (1 << (BITS[number] - 1))
        words = _interleave(unsigned & 15, extent=64, planes=4)
        words_per_scale = 256
        if number != Q4:
            high = _high_plane(number, unsigned >> 4)
    return Packed(
        number,
        rows,
        columns,
        width,
        words,
        high,
        _scale_words(scales, words_per_scale // group),
        _floats(codes),
    )


def pack_fp8(codes: Tensor, scales: Tensor) -> Packed:
    """E4M3 ``codes`` [N, K] uint8 and float32 ``scales`` [N]."""
    rows, columns = codes.shape
    height, width = padded(rows, ROW_STEP), padded(columns, k_step(FP8))
    words = _interleave(_pad(codes, height, width).to(torch.int32), extent=64, planes=2)
    return Packed(
        FP8, rows, columns, width, words, _none(codes), _longs(codes), pad(scales.float(), (0, height - rows))
    )


def pack_nvfp4(codes: Tensor, scales: Tensor, factors: Tensor) -> Packed:
    """E2M1 ``codes`` [N, K] uint8 (low four bits), E4M3 ``scales`` [N, K / 16] and ``factors`` [N] float32.

    A factor is one over the object's divisor.
    """
    rows, columns = codes.shape
    height, width = padded(rows, ROW_STEP), padded(columns, k_step(NVFP4))
    natural = _pad(codes, height, width).view(height, -1, 64)
    nibbles = _interleave(
        natural[..., _order(codes)].view(height, width).to(torch.int32), extent=64, planes=4
    )
    words = _moved_bits(
        nibbles, {4 * j + i: to for j, bits in enumerate(E2M1_BITS) for i, to in enumerate(bits)}
    )
    packed = _scale_words(_pad(scales, height, width // 16), 8)
    return Packed(
        NVFP4, rows, columns, width, words, _none(codes), packed, pad(factors.float(), (0, height - rows))
    )


def concatenate(parts: list[Packed], interleaved: bool = False) -> Packed:
    """One matrix of the rows of several of one format and K.

    ``interleaved``: two matrices row by row (0, 0', 1, 1', …), as the gated product wants them. Rows are
    unpacked and packed again on their device.
    """
    first = parts[0]
    assert all(p.format == first.format and p.columns == first.columns for p in parts)
    planes = [unpack(part) for part in parts]
    joined = [
        torch.stack(pieces, 1).flatten(0, 1) if interleaved else torch.cat(pieces)
        for pieces in zip(*planes, strict=True)
    ]
    return repack(first.format, joined)


def repack(number: int, planes: list[Tensor]) -> Packed:
    """The inverse of ``unpack``."""
    if number == BF16:
        return pack_bf16(planes[0])
    if number == FP8:
        return pack_fp8(planes[0], planes[1])
    if number == NVFP4:
        return pack_nvfp4(planes[0], planes[1], planes[2])
    return pack_grouped(number, planes[0], planes[1])


def unpack(matrix: Packed) -> list[Tensor]:
    """The natural planes again: what the ``pack`` function of the format takes."""
    rows, columns, number = matrix.rows, matrix.columns, matrix.format
    if number == BF16:
        return [matrix.words[:rows, :columns]]
    extent, planes = {FP8: (64, 2), Q8: (32, 2)}.get(number, (64, 4))
    words = matrix.words
    if number == NVFP4:
        places = {at: 4 * j + i for j, bits in enumerate(E2M1_BITS) for i, at in enumerate(bits)}
        words = _moved_bits(words, places)
    codes = _separate(words, matrix.width, extent, planes)
    if number in (Q6, Q5):
        codes = codes | (_high_codes(number, matrix.high, matrix.width) << 4)
    if number in BITS:
        codes = codes - (1 << (BITS[number] - 1))
    if number == NVFP4:
        codes = codes.view(len(codes), -1, 64)[..., torch.argsort(_order(codes))].reshape(len(codes), -1)
    codes = codes[:rows, :columns]
    if number == FP8:
        return [codes.to(torch.uint8), matrix.row_scales[:rows]]
    if number == NVFP4:
        scales = _natural_scales(matrix.scales, torch.uint8)[:rows, : columns // 16]
        return [codes.to(torch.uint8), scales, matrix.row_scales[:rows]]
    group = 32 if number == Q8 else 64
    scales = _natural_scales(matrix.scales, torch.float16)[:rows, : padded(columns, group) // group]
    return [codes.to(torch.uint8).view(torch.int8) if number == Q8 else codes.to(torch.int8), scales]


def _pad(matrix: Tensor, height: int, width: int) -> Tensor:
    if matrix.shape == (height, width):
        return matrix
    return pad(matrix, (0, width - matrix.shape[1], 0, height - matrix.shape[0]))


def _interleave(codes: Tensor, extent: int, planes: int) -> Tensor:
    """Natural codes [N, K] int32 → int16 panels [N / 64, K / step, 64, extent]."""
    bits = 16 // planes
    shape = (codes.shape[0] // PANEL, PANEL, codes.shape[1] // (extent * planes), planes, extent)
    parts = codes.view(shape).unbind(3)
    words = parts[0]
    for plane in range(1, planes):
        words = words | parts[plane] << (bits * plane)
    return words.to(torch.int16).transpose(1, 2).contiguous()


def _moved_bits(words: Tensor, places: dict[int, int]) -> Tensor:
    """16-bit words with bit i of each moved to ``places[i]``."""
    moved = torch.zeros_like(words)
    for source, target in places.items():
        bit = (words >> source) & 1
        # The sign bit of an int16 is its own negative.
        moved |= bit << target if target < 15 else torch.where(bit != 0, -32768, 0).to(words.dtype)
    return moved


def _separate(words: Tensor, width: int, extent: int, planes: int) -> Tensor:
    bits = 16 // planes
    whole = words.transpose(1, 2).to(torch.int32)  # [panels, 64, steps, extent]
    parts = [whole >> (bits * plane) & ((1 << bits) - 1) for plane in range(planes)]
    return torch.stack(parts, 3).reshape(-1, width)


def _high_plane(number: int, high: Tensor) -> Tensor:
    """The bits above the fourth [N, K] → int8 panels [N / 64, K / step, 64, 64]."""
    bits, fields = (2, 4) if number == Q6 else (1, 8)
    shape = (high.shape[0] // PANEL, PANEL, high.shape[1] // (64 * fields), fields, 64)
    parts = high.view(shape).unbind(3)
    words = parts[0]
    for field in range(1, fields):
        words = words | parts[field] << (bits * field)
    return words.to(torch.uint8).view(torch.int8).transpose(1, 2).contiguous()


def _high_codes(number: int, high: Tensor, width: int) -> Tensor:
    bits, fields = (2, 4) if number == Q6 else (1, 8)
    whole = high.transpose(1, 2).to(torch.int32)
    parts = [whole >> (bits * field) & ((1 << bits) - 1) for field in range(fields)]
    return torch.stack(parts, 3).reshape(-1, width)


def _scale_words(scales: Tensor, count: int) -> Tensor:
    """Scales [N, groups] → int64 [N / 64, groups / count, 64], ``count`` scales a word."""
    shape = (scales.shape[0] // PANEL, PANEL, scales.shape[1] // count, count)
    return scales.reshape(shape).transpose(1, 2).contiguous().view(torch.int64).squeeze(-1)


def _natural_scales(words: Tensor, dtype: torch.dtype) -> Tensor:
    parts = words.unsqueeze(-1).view(dtype)  # [panels, steps, 64, count]
    return parts.transpose(1, 2).reshape(words.shape[0] * PANEL, -1)


def _order(like: Tensor) -> Tensor:
    """The place in K of each element of an nvfp4 plane: 2t and 2t + 1 of every eight are of group t."""
    i = torch.arange(64, device=like.device)
    return 16 * (i // 2 % 4) + 2 * (i // 8) + i % 2


def _none(like: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.int8, device=like.device)


def _longs(like: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.int64, device=like.device)


def _floats(like: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.float32, device=like.device)
