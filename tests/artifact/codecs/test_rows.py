"""Encoders and decoders of all nine formats against golden bytes and one-value-at-a-time references."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ninfer import spec
from ninfer.artifact.codecs import decode_rows, encode_divisor, encode_rows, validate_rows, weight_divisor
from ninfer.artifact.layouts import Geometry, default_layout, geometry
from ninfer.errors import ArtifactError
from tests.artifact import scalar

VECTORS: list[dict[str, Any]] = spec.document("vectors/artifact_codecs")
AWKWARD = st.sampled_from([1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130, 192, 257])
Planes = dict[str, NDArray[np.uint8]]


def encode(name: str, values: NDArray[np.float32]) -> tuple[Geometry, Planes]:
    """All planes of a whole tensor."""
    divisor = weight_divisor(float(np.abs(values).max())) if name == "nvfp4" else None
    planes = encode_rows(name, values, divisor)
    if divisor is not None:
        planes |= encode_divisor(divisor)
    return geometry(name, default_layout(name), values.shape), planes


def stored(found: Geometry, planes: Planes) -> bytes:
    """The object's bytes as they lie in a file."""
    raw = bytearray(found.bytes)
    for plane in found.planes:
        assert planes[plane.name].size == plane.bytes
        raw[plane.offset : plane.offset + plane.bytes] = planes[plane.name].tobytes()
    return bytes(raw)


def sparse(size: int, pieces: dict[str, str]) -> bytes:
    raw = bytearray(size)
    for offset, text in pieces.items():
        piece = bytes.fromhex(text)
        raw[int(offset) : int(offset) + len(piece)] = piece
    return bytes(raw)


@st.composite
def matrices(draw: st.DrawFn, columns: st.SearchStrategy[int] = AWKWARD) -> NDArray[np.float32]:
    """[n, K] with magnitudes over many binades, zeros of both signs and whole zero groups."""
    rows, width = draw(st.integers(1, 4)), draw(columns)
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = random.standard_normal((rows, width), dtype=np.float32)
    low = draw(st.sampled_from([-30, -30, -140]))  # the last reaches scales whose reciprocal is infinite
    values *= np.exp2(random.integers(low, low + 40, (rows, 1)).astype(np.float32))
    values[random.random((rows, width)) < draw(st.sampled_from([0.0, 0.1, 0.9, 1.0]))] = 0
    values[random.random((rows, width)) < 0.05] = -0.0
    return values


@pytest.mark.parametrize(
    "case", VECTORS, ids=lambda case: f"{case['input']['format']}-{case['source'][-40:]}"
)
def test_golden_bytes(case: dict[str, Any]) -> None:
    shape = tuple(case["input"]["shape"])
    values = np.zeros(math.prod(shape), np.float32)
    for index, value in case["input"]["values"].items():
        values[int(index)] = value
    found, planes = encode(case["input"]["format"], values.reshape(shape))
    assert set(planes) == set(case["expected"])
    for name, pieces in case["expected"].items():
        assert planes[name].tobytes().hex() == sparse(found.plane(name).bytes, pieces).hex(), name


@given(st.sampled_from(sorted(scalar.GROUPED)), matrices())
def test_grouped_encoder_and_decoder_follow_the_definition(name: str, values: NDArray[np.float32]) -> None:
    found, planes = encode(name, values)
    decoded = decode_rows(found, planes, len(values))
    assert decoded.tolist() == scalar.decode_grouped(name, stored(found, planes), *values.shape)
    group = scalar.GROUPED[name][1]
    for row, groups in enumerate(scalar.encode_grouped(name, values.tolist())):
        expected = [scalar.f32(scale * code) for scale, codes in groups for code in codes]
        assert decoded[row].tolist() == expected
        scales = planes["scales"].view("<f2").reshape(len(values), -1)[row]
        assert scales[: len(groups)].tolist() == [scale for scale, _ in groups]
        assert not scales[-(-values.shape[1] // group) :].any()
    assert validate_rows(found, planes, len(values)) is None


@given(st.sampled_from(sorted(scalar.GROUPED)), st.integers(1, 3), AWKWARD, st.randoms(use_true_random=False))
def test_grouped_decoder_takes_any_words(name: str, rows: int, columns: int, random: Any) -> None:
    found = geometry(name, default_layout(name), (rows, columns))
    raw = bytearray(random.randbytes(found.bytes))
    scales = found.plane("scales")
    for offset in range(scales.offset + 1, found.bytes, 2):
        raw[offset] &= 0x3B  # positive, finite, not huge
    planes = {
        p.name: np.frombuffer(bytes(raw[p.offset : p.offset + p.bytes]), np.uint8) for p in found.planes
    }
    assert decode_rows(found, planes, rows).tolist() == scalar.decode_grouped(name, bytes(raw), rows, columns)


@given(matrices())
def test_fp8_encoder_and_decoder_follow_the_definition(values: NDArray[np.float32]) -> None:
    found, planes = encode("fp8_e4m3fn_row_bf16", values)
    for row, numbers in enumerate(values.tolist()):
        scale, codes = scalar.encode_fp8(numbers)
        assert planes["scales"][2 * row : 2 * row + 2].tobytes() == scale
        assert planes["codes"].reshape(values.shape)[row].tolist() == codes
    decoded = decode_rows(found, planes, len(values))
    assert decoded.tolist() == scalar.decode_fp8(stored(found, planes), *values.shape)
    assert validate_rows(found, planes, len(values)) is None


@settings(max_examples=15)
@given(st.sampled_from([64, 128, 192]), st.sampled_from([1, 2]), st.integers(0, 2**32 - 1))
def test_nvfp4_encoder_and_decoder_follow_the_definition(columns: int, tiles: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.standard_normal((128 * tiles, columns), dtype=np.float32)
    values *= np.float32(2.0) ** random.integers(-20, 4, (128 * tiles, 1)).astype(np.float32)
    found, planes = encode("nvfp4", values)
    raw, divisor = stored(found, planes), scalar.f32(2688 / float(np.abs(values).max()))
    assert scalar.f32_of(raw[-4:]) == divisor
    picks = [(int(r), int(g)) for r, g in random.integers(0, [128 * tiles, columns // 16], (20, 2))]
    for row, group in picks:
        word, codes = scalar.encode_nvfp4_group(values[row, 16 * group : 16 * group + 16].tolist(), divisor)
        assert planes["scales"][scalar.nvfp4_scale_at(row, group, columns)] == word
        packed = planes["codes"].reshape(len(values), -1)[row, 8 * group : 8 * group + 8]
        assert [nibble for byte in packed.tolist() for nibble in (byte & 15, byte >> 4)] == codes
    cells = [(row, 16 * group + lane) for row, group in picks for lane in range(16)]
    decoded = decode_rows(found, planes, len(values))
    expected = scalar.decode_nvfp4(raw, len(values), columns, cells)
    assert [decoded[cell] for cell in cells] == expected
    assert validate_rows(found, planes, len(values)) is None


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
def test_direct_words_survive_bit_for_bit(words: list[int]) -> None:
    wide = np.array(words, np.uint32)
    for name, stored_words in {
        "fp32": wide.view(np.float32),
        "int32": wide.view(np.int32),
        "bf16": (wide & 0xFFFF).astype(np.uint16),
    }.items():
        planes = encode_rows(name, stored_words)
        assert planes["words"].tobytes() == stored_words.tobytes()
        found = geometry(name, "contiguous_le_v1", stored_words.shape)
        decoded = decode_rows(found, planes, len(words)).reshape(-1)
        expected = stored_words.astype(np.uint32) << 16 if name == "bf16" else stored_words.view(np.uint32)
        assert (decoded.view(np.uint32) == expected).all()


@pytest.mark.parametrize("name", ["q4_g64_fp16", "q8_g32_fp16", "fp8_e4m3fn_row_bf16", "nvfp4"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_encoders_refuse_values_that_are_not_finite(name: str, value: float) -> None:
    values = np.ones((128, 64), np.float32)
    values[5, 33] = value
    with pytest.raises(ArtifactError, match=r"row 5|max-abs"):
        encode_rows(name, values, np.float32(1))


def test_grouped_encoder_refuses_a_scale_beyond_fp16() -> None:
    with pytest.raises(ArtifactError, match=r"row 1 group 0: max-abs 1000000\.0"):
        encode_rows("q4_g64_fp16", np.array([[1], [1e6]], np.float32))


@pytest.mark.parametrize("amax", [1e-40, math.inf, math.nan])
def test_weight_divisor_must_be_finite_and_positive(amax: float) -> None:
    with pytest.raises(ArtifactError, match="divisor"):
        weight_divisor(amax)


def test_weight_divisor_of_zeros_is_one() -> None:
    assert weight_divisor(0.0) == 1


def test_wrong_element_types_are_refused() -> None:
    rows = np.ones((128, 64), np.float64)
    for name in ("bf16", "fp32", "int32", "q4_g64_fp16", "nvfp4"):
        with pytest.raises(ArtifactError, match="float64"):
            encode_rows(name, rows)
    with pytest.raises(ArtifactError, match="divisor of the whole parent"):
        encode_rows("nvfp4", rows.astype(np.float32))


@pytest.mark.parametrize(
    ("name", "plane", "offset", "byte", "problem"),
    [
        ("q4_g64_fp16", "scales", 1, 0x80, "row 0 group 0: scale is negative or not finite"),
        ("q4_g64_fp16", "scales", 1, 0x7C, "row 0 group 0: scale is negative or not finite"),
        ("q8_g32_fp16", "base", 128 + 3, 0x80, "row 1 group 0: code is below -127"),
        ("q6_g64_fp16", "base", 30, 0x10, "row 0 group 0: padding code is not 0"),
        ("q5_g64_fp16", "scales", 3, 0x3C, "row 0 group 1: padding group has a scale"),
        ("fp8_e4m3fn_row_bf16", "codes", 60, 0xFF, "row 1: a code is NaN"),
        ("fp8_e4m3fn_row_bf16", "scales", 3, 0x80, "row 1: scale is negative or not finite"),
        ("fp8_e4m3fn_row_bf16", "scales", 1, 0x7F, None),
    ],
)
def test_validation_names_the_illegal_word(
    name: str, plane: str, offset: int, byte: int, problem: str | None
) -> None:
    found, planes = encode(name, np.ones((2, 50), np.float32))
    planes[plane] = planes[plane].copy()
    planes[plane][offset] = byte
    assert validate_rows(found, planes, 2) == problem


def test_validation_of_zero_scales_and_nvfp4() -> None:
    found, planes = encode("q4_g64_fp16", np.ones((2, 50), np.float32))
    planes["scales"] = np.zeros_like(planes["scales"])
    assert validate_rows(found, planes, 2) == "row 0 group 0: scale is +0 but a code is not 0"
    found, planes = encode("fp8_e4m3fn_row_bf16", np.ones((2, 50), np.float32))
    planes["scales"] = np.zeros_like(planes["scales"])
    assert validate_rows(found, planes, 2) == "row 0: scale is +0 but a code is not 0"
    found, planes = encode("nvfp4", np.ones((128, 64), np.float32))
    planes["scales"] = planes["scales"].copy()
    planes["scales"][21] = 0x80
    assert validate_rows(found, planes, 128) == "row 33 group 1: scale is negative or NaN"
    for divisor in (0.0, -1.0, math.inf, math.nan):
        problem = validate_rows(found, planes | encode_divisor(np.float32(divisor)), 128)
        assert problem is not None
        assert "divisor" in problem
