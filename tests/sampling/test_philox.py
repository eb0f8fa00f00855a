"""Philox against Random123's published answers, and the uniform numbers made from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer import spec
from ninfer.sampling.philox import Purpose, philox4x32, uniform

VECTORS = spec.document("vectors/sampling_philox")
PURPOSES: list[Purpose] = list(spec.document("sampling")["randomness"]["purposes"])


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['input']['rounds']}-{v['input']['key'][0]}")
def test_published_answers(vector: dict) -> None:
    given = vector["input"]
    counter, key = ([int(word, 16) for word in given[part]] for part in ("counter", "key"))
    assert [f"{word:08x}" for word in philox4x32(counter, key, given["rounds"])] == vector["expected"]


def test_specified_rounds_are_ten() -> None:
    vector = next(v for v in VECTORS if v["input"]["rounds"] == 10)
    words = philox4x32((0, 0, 0, 0), (0, 0))
    assert [f"{word:08x}" for word in words] == vector["expected"]


def test_uniform_takes_53_bits_of_the_published_words() -> None:
    # Counter and key of all zeros give 6627e8d5 e169c58d: 27 high bits of the first, 26 of the second.
    bits = (0x6627E8D5 >> 5) << 26 | 0xE169C58D >> 6
    assert uniform(0, 0, "token", 0) == bits / 2**53


def test_key_counter_and_bits_lie_as_the_specification_says() -> None:
    rules = spec.document("sampling")["randomness"]
    seed = 2**64 - 3
    words = {"seed_low": 0xFFFFFFFD, "seed_high": 0xFFFFFFFF, "position": 7, "index": 3, "zero": 0}
    words["purpose"] = rules["purposes"]["acceptance"]
    x = philox4x32([words[name] for name in rules["counter"]], [words[name] for name in rules["key"]])
    high, low = (x[i] >> shift for i, shift in enumerate(rules["uniform"]["shifts"]))
    expected = (high << (32 - rules["uniform"]["shifts"][1]) | low) / 2 ** rules["uniform"]["bits"]
    assert uniform(seed, 7, "acceptance", 3) == expected


@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**32 - 1),
    purpose=st.sampled_from(PURPOSES),
    index=st.integers(0, 2**32 - 1),
)
def test_uniform_range_and_repeatability(seed: int, position: int, purpose: Purpose, index: int) -> None:
    u = uniform(seed, position, purpose, index)
    assert 0 <= u < 1
    assert (u * 2**53).is_integer()
    assert uniform(seed, position, purpose, index) == u


def test_every_part_of_the_key_matters() -> None:
    numbers = {
        uniform(seed, position, purpose, index)
        for seed in (0, 1, 2**32, 2**63)
        for position in range(8)
        for purpose in PURPOSES
        for index in range(4)
    }
    assert len(numbers) == 4 * 8 * len(PURPOSES) * 4


def test_numbers_fill_the_interval_evenly() -> None:
    bins = [0] * 64
    for position in range(16000):
        bins[int(uniform(11, position, "token") * 64)] += 1
    chi_square = sum((count - 250) ** 2 / 250 for count in bins)
    assert 30 < chi_square < 110  # 63 degrees of freedom: outside with probability under 0.0005
