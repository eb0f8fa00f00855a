"""The KV formats' sizes follow from their encodings, and their numbers are those of the types they name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from ninfer.spec import document
from ninfer.spec.options import option_table
from tests.spec import kv_rows

KV = document("kv_formats")
SIZES = {(row["format"], row["head_dim"]): row for row in KV["bytes_per_token_and_head"]}


def row_bytes(encoding: dict[str, object], head_dim: int) -> int:
    code_bits, scale_bytes = encoding["code_bits"], encoding.get("scale_bytes", 0)
    group = encoding.get("group", "row")
    assert isinstance(code_bits, int)
    assert isinstance(scale_bytes, int)
    groups = 1 if group == "row" else head_dim // int(str(group))
    return head_dim * code_bits // 8 + groups * scale_bytes


@pytest.mark.parametrize(("name", "head_dim"), SIZES)
def test_size_follows_from_the_encoding(name: str, head_dim: int) -> None:
    for role in ("key", "value"):
        encoding = KV["encodings"][KV["formats"][name][role]["encoding"]]
        assert SIZES[name, head_dim][role] == row_bytes(encoding, head_dim)


def test_there_is_a_size_for_every_format_and_head_dimension() -> None:
    expected = {(name, head_dim) for name, row in KV["formats"].items() for head_dim in row["head_dims"]}
    assert set(SIZES) == expected


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("bf16", 65536),
        ("int8", 33792),
        ("fp8", 33024),
        ("k8v4", 25728),
        ("nvfp4", 18432),
        ("k4v2", 12544),
        ("vq2", 8448),
    ],
)
def test_published_totals_of_the_27b(name: str, bytes_per_token: int) -> None:
    """16 attention layers of 4 KV heads of 256: the totals that were published for Qwen3.8-27B."""
    size = SIZES[name, 256]
    assert 16 * 4 * (size["key"] + size["value"]) == bytes_per_token


def test_rotated_planes_are_as_published() -> None:
    rotated = {name: (row["key"]["rotated"], row["value"]["rotated"]) for name, row in KV["formats"].items()}
    both, keys, none = (True, True), (True, False), (False, False)
    assert rotated == {
        "float32": none, "bf16": none, "int8": keys, "fp8": keys, "nvfp4": both, "k8v4": both, "vq2": both,
        "k4v2": both,
    }  # fmt: skip


def test_rotation_is_its_own_inverse_for_every_head_dimension() -> None:
    for head_dim in KV["head_dims"]:
        matrix = np.ones((1, 1))
        while len(matrix) < head_dim:
            matrix = np.block([[matrix, matrix], [matrix, -matrix]])
        scaled = matrix * head_dim ** KV["rotation"]["exponent"]
        np.testing.assert_allclose(scaled @ scaled, np.eye(head_dim), atol=1e-12)


def test_scale_bounds_are_those_of_their_types() -> None:
    fp16 = np.finfo(np.float16)
    fp8, nvfp4 = KV["encodings"]["fp8_row"], KV["encodings"]["nvfp4_g16"]
    assert (fp8["scale_min"], fp8["scale_max"]) == (float(fp16.smallest_subnormal), float(fp16.max))
    assert fp8["target"] == nvfp4["scale_max"] == (2 - 2**-2) * 2**8  # e4m3fn: 1.110 * 2^8 is the largest
    assert nvfp4["scale_min"] == 2.0**-9  # its smallest subnormal
    assert max(nvfp4["targets"]) == 6  # the largest e2m1


def test_lloyd_max_thresholds_lie_between_their_levels() -> None:
    row = KV["encodings"]["q4_row"]
    middles = [(low + high) / 2 for low, high in zip(row["levels"], row["levels"][1:], strict=False)]
    assert row["thresholds"] == middles
    assert len(row["levels"]) == 2 ** (row["code_bits"] - 1)


def test_pattern_word_holds_an_index_and_signs() -> None:
    row = KV["encodings"]["vq2_row"]
    assert (
        row["code_bits"] * row["pattern_values"]
        == 16
        == math.log2(row["patterns"]) + row["pattern_values"] - 1
    )


def test_the_option_offers_every_format() -> None:
    for program in ("ninfer-serve", "ninfer", "ninfer-bench"):
        offered = [choice.value for choice in option_table(program).named("--kv-dtype").choices]
        assert offered == [name for name, row in KV["formats"].items() if "test_only" not in row]


def row_of(case: dict[str, Any]) -> kv_rows.F32:
    words = np.frombuffer(bytes.fromhex(case["input"]["bf16"]), "<u2").astype(np.uint32) << np.uint32(16)
    return words.view(np.float32)


def test_vectors_are_made_by_the_rules() -> None:
    for case in document("vectors/kv_formats")["cases"]:
        row = row_of(case)
        wanted = kv_rows.rotate(row) if case["input"]["rotated"] else row
        codes, scales = kv_rows.encode(case["input"]["encoding"], wanted)
        assert case["expected"] == {"codes": codes.hex(), "scales": scales.hex()}, case["name"]


def test_small_floats_round_as_torch_does() -> None:
    """The outside source of float8 rounding; float4 has no cast there, its values are the published ones."""
    bits = np.arange(0, 2**16, 7, dtype=np.uint16)
    numbers = bits.view(np.float16).astype(np.float32)
    numbers = numbers[np.isfinite(numbers) & (np.abs(numbers) <= 448)]
    cast = torch.from_numpy(numbers).to(torch.float8_e4m3fn).view(torch.uint8).tolist()
    assert [kv_rows.E4M3FN.encode(x) for x in numbers] == cast
    assert kv_rows.E2M1.values == (0, 0.5, 1, 1.5, 2, 3, 4, 6)
    halfway = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 7, -0.25]
    assert [kv_rows.E2M1.encode(x) for x in halfway] == [0, 2, 2, 4, 4, 6, 6, 7, 8]


@pytest.mark.parametrize("head_dim", KV["head_dims"])
def test_rotation_by_butterflies_is_the_matrix(head_dim: int) -> None:
    row = kv_rows.rows(head_dim)["normal"]
    matrix = np.ones((1, 1))
    while len(matrix) < head_dim:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    np.testing.assert_allclose(
        kv_rows.rotate(row), matrix @ row.astype(np.float64) / head_dim**0.5, atol=1e-5
    )


def test_encoded_rows_have_their_size_and_come_back_close() -> None:
    bounds = {"fp16": 0.0, "int8_g64": 0.01, "fp8_row": 0.04, "nvfp4_g16": 0.12}
    for case in document("vectors/kv_formats")["cases"]:
        name = case["input"]["encoding"]
        row = row_of(case)
        codes, scales = (bytes.fromhex(case["expected"][plane]) for plane in ("codes", "scales"))
        assert len(codes) + len(scales) == row_bytes(KV["encodings"][name], len(row))
        if case["name"].startswith("normal"):
            wanted = kv_rows.rotate(row) if case["input"]["rotated"] else row
            error = decoded(name, codes, scales) - wanted
            assert np.linalg.norm(error) <= bounds[name] * np.linalg.norm(wanted) + 1e-3, case["name"]


def decoded(name: str, codes: bytes, scales: bytes) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Decoding as the comments of kv_formats.yaml say it, written apart from the encoder."""
    if name == "fp16":
        return np.frombuffer(codes, "<f2").astype(np.float64)
    if name == "int8_g64":
        return np.frombuffer(codes, "i1") * np.repeat(np.frombuffer(scales, "<f2").astype(np.float64), 64)
    floats = torch.frombuffer(bytearray(codes if name == "fp8_row" else scales), dtype=torch.float8_e4m3fn)
    eighths = floats.to(torch.float64).numpy()
    if name == "fp8_row":
        return eighths * np.frombuffer(scales, "<f2").astype(np.float64)
    sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    packed = np.frombuffer(codes, np.uint8)
    nibbles = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)
    return np.where(nibbles & 8, -1.0, 1.0) * sizes[nibbles & 7] * np.repeat(eighths, 16)
