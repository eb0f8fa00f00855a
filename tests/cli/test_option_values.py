"""One word → one value: numbers are accepted exactly within their range, sizes exactly."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.cli.option_values import range_text
from ninfer.cli.parser import parse_table
from ninfer.errors import OptionError
from tests.cli.tables import all_working

TABLE = all_working("ninfer-serve")


def refused(argv: list[str]) -> str:
    with pytest.raises(OptionError) as refusal:
        parse_table(TABLE, argv)
    return refusal.value.option


@given(st.integers(-(2**70), 2**70), st.booleans())
def test_an_integer_is_accepted_exactly_within_its_range(number: int, joined: bool) -> None:
    argv = [f"--prefill-chunk={number}"] if joined else ["--prefill-chunk", str(number)]
    if 64 <= number <= 65536:
        assert parse_table(TABLE, argv)["prefill_chunk"] == number
    else:
        assert refused(argv) == "--prefill-chunk"


@given(st.floats())
def test_a_number_is_accepted_exactly_when_finite_and_within_its_range(number: float) -> None:
    argv = ["--presence-penalty", repr(number)]
    if math.isfinite(number) and -2 <= number <= 2:
        assert parse_table(TABLE, argv)["presence_penalty"] == number
    else:
        assert refused(argv) == "--presence-penalty"


@given(st.integers(0, 2**40))
def test_whole_bytes_survive_decimal_mebibytes(size: int) -> None:
    digits = 20  # one byte is 2**-20 MiB: 20 decimals spell it exactly
    text = str(size * 5**20).rjust(digits + 1, "0")
    assert (
        parse_table(TABLE, ["--host-context-mib", f"{text[:-digits]}.{text[-digits:]}"])["host_context_bytes"]
        == size
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("--port", "0..65535"),
        ("--presence-penalty", "-2..2"),
        ("--pending-timeout-ms", "at least 1"),
        ("--max-context", "64..the model's native context"),
        ("--host", ""),
    ],
)
def test_range_in_words(name: str, text: str) -> None:
    assert range_text(TABLE.named(name)) == text
