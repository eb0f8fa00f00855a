"""Directory text: strict JSON, errors at the byte of the file (the text starts at byte 32)."""

from __future__ import annotations

import pytest

from ninfer.artifact import json_text
from ninfer.errors import ArtifactError


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        (b"", 0),
        (b"{", 1),
        (b'{"a": tru}', 9),
        (b'{"a":1}\n x', 9),
        (b'{"a":NaN}', 5),
        (b'{"a":Infinity}', 5),
        (b'{"a":-Infinity}', 5),
        (b'{"a":01}', 6),
        (b"{'a':1}", 1),
        (b"\xef\xbb\xbf{}", 0),
        (b'["\xff"]', 2),
        (b'["a",\n\n"\xc3("]', 9),
        (b'["\xed\xa0\x80"]', 2),
    ],
)
def test_malformed_text_is_refused_at_its_byte(text: bytes, offset: int) -> None:
    with pytest.raises(ArtifactError) as error:
        json_text.parse(text)
    position = int(error.value.where.removeprefix("byte "))
    assert abs(position - 32 - offset) <= 1


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":2}',
        b'{"x":{"a":1,"b":2,"a":1}}',
        b'{"a":1,"\\u0061":2}',
        b'["\\ud800"]',
        b'["\\udc00\\ud800"]',
        b"[" * 100_000,
        b'{"a":' * 500 + b"1" + b"}" * 500,
        b"9" * 5000,
        b"\0",
    ],
    ids=lambda text: repr(text[:20]),
)
def test_duplicates_surrogates_depth_and_huge_numbers_are_refused(text: bytes) -> None:
    with pytest.raises(ArtifactError, match="byte "):
        json_text.parse(text)


def test_a_long_duplicate_is_named_in_short() -> None:
    with pytest.raises(ArtifactError, match="duplicate key") as error:
        json_text.parse(b'{"%b":1,"%b":2}' % (b"k" * 5000, b"k" * 5000))
    assert len(str(error.value)) < 200


def test_integers_keep_all_their_digits_and_trailing_blanks_are_fine() -> None:
    assert json_text.parse(b"[18446744073709551615,1.0]   \n") == [2**64 - 1, 1.0]
    assert type(json_text.parse(b"18446744073709551615")) is int
    assert type(json_text.parse(b"1.0")) is float


def test_rendering_is_compact_and_unescaped() -> None:
    assert json_text.render({"é": [1, None]}) == '{"é":[1,null]}'.encode()


@pytest.mark.parametrize("value", [{"a": float("nan")}, {"a": object()}, {"a": "\ud800"}, {"a": b"x"}])
def test_values_that_json_cannot_hold_are_refused(value: object) -> None:
    with pytest.raises(ArtifactError, match="directory"):
        json_text.render(value)
