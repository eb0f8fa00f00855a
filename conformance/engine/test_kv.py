"""The oracle's round trip against the golden rows of the KV formats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from conformance.engine.kv import check_neighbours, decode, rotate, round_trip
from ninfer.spec import document

SUPPORTED = ("bf16", "fp16", "int8_g64", "fp8_row", "nvfp4_g16")
CASES = [c for c in document("vectors/kv_formats")["cases"] if c["input"]["encoding"] in SUPPORTED]


def case_id(case: dict[str, Any]) -> str:
    return f"{case['input']['encoding']}-{'rotated-' * case['input']['rotated']}{case['name']}"


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_golden_rows_come_back_as_their_codes_decode(case: dict[str, Any]) -> None:
    encoding, rotated = case["input"]["encoding"], case["input"]["rotated"]
    words = np.frombuffer(bytes.fromhex(case["input"]["bf16"]), "<u2")
    row = torch.from_numpy((words.astype(np.uint32) << 16).view(np.float32))
    codes = bytes.fromhex(case["expected"]["codes"])
    scales = np.frombuffer(
        bytes.fromhex(case["expected"]["scales"]), np.uint8 if encoding == "nvfp4_g16" else "<f2"
    )
    if encoding in ("int8_g64", "fp8_row", "nvfp4_g16"):
        stored = np.frombuffer(codes, np.int8 if encoding == "int8_g64" else np.uint8)
        wanted = decode(encoding, torch.from_numpy(stored.copy()), torch.from_numpy(scales.copy())).float()
    elif encoding == "fp16":
        wanted = torch.from_numpy(np.frombuffer(codes, "<f2").astype(np.float32))
    else:
        wanted = row
    assert torch.equal(round_trip(row, encoding, rotated), rotate(wanted) if rotated else wanted)


def test_there_are_golden_rows_for_every_encoding() -> None:
    assert {case["input"]["encoding"] for case in CASES} >= {"fp16", "int8_g64", "fp8_row", "nvfp4_g16"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_does_not_depend_on_the_models_precision(dtype: torch.dtype) -> None:
    rows = torch.randn(50, 2, 128, dtype=torch.float32, generator=torch.Generator().manual_seed(1))
    for encoding in ("float32", *SUPPORTED):
        found = round_trip(rows.to(dtype), encoding, False)
        assert found.dtype == dtype
        assert torch.equal(found, round_trip(rows, encoding, False).to(dtype))


def test_the_rotation_is_orthogonal_and_its_own_inverse() -> None:
    matrix = rotate(torch.eye(64, dtype=torch.float64))
    assert torch.allclose(matrix @ matrix.T, torch.eye(64, dtype=torch.float64))
    assert torch.equal(matrix, matrix.T)


@pytest.mark.parametrize("rotated", [False, True])
def test_neighbours_of_every_code_are_told_from_codes_further_away(rotated: bool) -> None:
    """Where all codes of a row lie one step off, their steps add up in the row's own basis."""
    codes = torch.randint(-126, 126, (20, 2, 64), generator=torch.Generator().manual_seed(2)).double()
    codes[..., 0] = 126

    def rows(codes: torch.Tensor) -> torch.Tensor:
        return rotate(codes / 127) if rotated else codes / 127

    check_neighbours(rows(codes), rows(codes + 1), "int8_g64", rotated)
    further = codes.clone()
    further[7, 1, 5] += 2
    with pytest.raises(AssertionError, match="a stored row"):
        check_neighbours(rows(codes), rows(further), "int8_g64", rotated)
