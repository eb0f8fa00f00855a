"""bf16, E4M3FN and E2M1 words ↔ float32. Every rounding is to nearest, ties to even.

Source: spec/artifact.yaml#formats; E4M3FN has bias 7, no infinity and NaN at 0x7f and 0xff; E2M1 has the
magnitudes 0, ½, 1, 1½, 2, 3, 4, 6 and its sign in bit 3.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

E4M3_MAX = np.float32(448)
E2M1_MAX = np.float32(6)
E4M3_NAN = 0x7F

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]


def bf16_to_float32(words: U16) -> F32:
    """Exact expansion of bf16 words, NaN payloads included."""
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def float32_to_bf16(values: F32) -> U16:
    """Nearest bf16 word; a NaN stays one and keeps the upper part of its payload."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype(np.uint16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    if nan.any():
        kept = (bits >> np.uint32(16)).astype(np.uint16)
        quiet = np.where((kept & 0x7F) == 0, np.uint16(0x40), np.uint16(0))
        rounded = np.where(nan, kept | quiet, rounded)
    return rounded


def e4m3_to_float32(words: U8) -> F32:
    """Exact value of E4M3FN words."""
    return np.asarray(_e4m3_values()[words], np.float32)


def float32_to_e4m3(values: F32) -> U8:
    """Nearest E4M3FN word, saturating at ±448; NaN becomes the NaN word."""
    values = np.ascontiguousarray(values, np.float32)
    sign = (values.view(np.uint32) >> np.uint32(24)).astype(np.uint8) & np.uint8(0x80)
    magnitude = np.minimum(np.abs(values), E4M3_MAX)
    bits = magnitude.view(np.uint32)
    # Normal: keep three fraction bits, then rebias the exponent from 127 to 7.
    even = (bits >> np.uint32(20)) & np.uint32(1)
    normal = ((bits + np.uint32(0x7FFFF) + even) >> np.uint32(20)) - np.uint32((127 - 7) << 3)
    # Below 2^-6 the step is 2^-9; eight steps are the smallest normal, whose word is 8 as well.
    small = np.rint(np.where(magnitude < np.float32(2**-6), magnitude, 0) * np.float32(512))
    words = np.where(magnitude < np.float32(2**-6), small.astype(np.uint32), normal).astype(np.uint8)
    words[np.isnan(values)] = E4M3_NAN
    return words | sign


def e2m1_to_float32(words: U8) -> F32:
    """Exact value of E2M1 words (low four bits)."""
    return np.asarray(_e2m1_values()[words], np.float32)


def float32_to_e2m1(values: F32) -> U8:
    """Nearest E2M1 word, saturating at ±6. Values must not be NaN."""
    magnitude = np.abs(values)
    words = np.zeros(magnitude.shape, np.uint8)
    # A tie goes to the even word: midpoints 0.25, 1.25, 2.5 and 5 stay below, 0.75, 1.75 and 3.5 go up.
    for midpoint in (0.25, 1.25, 2.5, 5.0):
        words += magnitude > np.float32(midpoint)
    for midpoint in (0.75, 1.75, 3.5):
        words += magnitude >= np.float32(midpoint)
    return words | (np.signbit(values).astype(np.uint8) << np.uint8(3))


@functools.cache
def _e4m3_values() -> F32:
    words = np.arange(256)
    exponent, fraction = (words >> 3) & 15, words & 7
    magnitude = np.where(exponent == 0, fraction * 2.0**-9, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    magnitude[(words & 0x7F) == E4M3_NAN] = np.nan
    return _frozen(np.where(words & 0x80, -magnitude, magnitude).astype(np.float32))


@functools.cache
def _e2m1_values() -> F32:
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    return _frozen(np.array(positive + [-value for value in positive], np.float32))


def _frozen(table: F32) -> F32:
    table.flags.writeable = False
    return table
