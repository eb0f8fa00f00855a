"""bf16, E4M3FN and E2M1 against exact fractions: every word, every midpoint and both its neighbours."""

from __future__ import annotations

import itertools
import math
import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ninfer.artifact.codecs import minifloats
from tests.artifact import scalar


def _edges(magnitudes: list[float]) -> np.ndarray:
    """All magnitudes, the midpoints between them, one float32 either side of those, with both signs."""
    middles = [np.float32((a + b) / 2) for a, b in itertools.pairwise(magnitudes)]
    near = [np.nextafter(m, np.float32(side)) for m in middles for side in (0, np.inf)]
    positive = np.array([*magnitudes, *middles, *near], np.float32)
    return np.concatenate([positive, -positive])


def test_every_e4m3_word_decodes_to_its_definition() -> None:
    found = minifloats.e4m3_to_float32(np.arange(256, dtype=np.uint8))
    for word, value in enumerate(found):
        expected = scalar.e4m3_of(word)
        assert math.isnan(value) if math.isnan(expected) else value == expected
        if value == 0:
            assert np.signbit(value) == bool(word & 0x80)


def test_e4m3_rounds_to_nearest_even_at_every_midpoint() -> None:
    values = _edges([scalar.e4m3_of(word) for word in range(0x7F)])
    expected = [scalar.to_e4m3(float(value)) for value in values]
    assert minifloats.float32_to_e4m3(values).tolist() == expected


def test_e4m3_saturates_and_keeps_nan() -> None:
    values = np.array([449, 464, 1e30, np.inf, -np.inf, np.nan], np.float32)
    assert minifloats.float32_to_e4m3(values).tolist()[:5] == [0x7E, 0x7E, 0x7E, 0x7E, 0xFE]
    assert minifloats.float32_to_e4m3(values)[5] & 0x7F == 0x7F


def test_e2m1_words_and_midpoints() -> None:
    assert minifloats.e2m1_to_float32(np.arange(16, dtype=np.uint8)).tolist() == [
        scalar.e2m1_of(word) for word in range(16)
    ]
    values = np.append(_edges([scalar.e2m1_of(word) for word in range(8)]), np.float32([7, -1e9]))
    assert minifloats.float32_to_e2m1(values).tolist() == [scalar.to_e2m1(float(v)) for v in values]


def test_bf16_round_trips_every_word_including_nan_payloads() -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    assert (minifloats.float32_to_bf16(minifloats.bf16_to_float32(words)) == words).all()


def test_bf16_nan_without_upper_payload_stays_nan() -> None:
    values = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF], np.uint32).view(np.float32)
    words = minifloats.float32_to_bf16(values)
    assert np.isnan(minifloats.bf16_to_float32(words)).all()
    assert (words >> 15).tolist() == [0, 1, 0]


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_bf16_rounds_to_nearest_even(numbers: list[float]) -> None:
    words = minifloats.float32_to_bf16(np.array(numbers, np.float32))
    assert words.astype("<u2").tobytes() == b"".join(scalar.to_bf16(number) for number in numbers)


@given(st.integers(0, 0x7F7E), st.sampled_from([-1, 0, 1]))
def test_bf16_midpoints(word: int, side: int) -> None:
    middle = (word << 16) + 0x8000 + side
    value = np.array([middle], np.uint32).view(np.float32)
    expected = struct.unpack("<H", scalar.to_bf16(float(value[0])))[0]
    assert minifloats.float32_to_bf16(value)[0] == expected == word + (side > 0 or (side == 0 and word & 1))
