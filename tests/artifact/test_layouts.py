"""Plane offsets and encoded sizes: published values, the formulas, and row spans."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer import spec
from ninfer.artifact.layouts import default_layout, geometry
from ninfer.errors import ArtifactError
from tests.artifact.scalar import GROUPED, align

VECTORS: list[dict[str, Any]] = spec.document("vectors/artifact_sizes")


@pytest.mark.parametrize(
    "case", VECTORS, ids=lambda case: f"{case['input']['format']}-{case['input']['shape']}"
)
def test_encoded_sizes_and_plane_offsets(case: dict[str, Any]) -> None:
    given_, expected = case["input"], case["expected"]
    found = geometry(given_["format"], given_["layout"], tuple(given_["shape"]))
    assert found.bytes == expected["bytes"]
    assert {plane.name: plane.offset for plane in found.planes} == expected["offsets"]
    assert default_layout(given_["format"]) == given_["layout"]


@given(st.sampled_from(sorted(GROUPED)), st.integers(1, 300), st.integers(1, 1000))
def test_grouped_size_is_the_sum_of_its_aligned_planes(name: str, rows: int, columns: int) -> None:
    _, group, _, _, base, high = GROUPED[name]
    groups = rows * align(columns, 128) // group
    expected = align(groups * base, 256) + align(groups * high, 256) + 2 * groups
    found = geometry(name, "row_split_k128_v1", (rows, columns))
    assert found.bytes == expected
    assert sum(plane.bytes for plane in found.planes) + sum(e - b for b, e in found.gaps()) == expected


@given(st.sampled_from(["q5_g64_fp16", "fp8_e4m3fn_row_bf16", "nvfp4", "bf16"]), st.data())
def test_row_spans_tile_every_plane(name: str, data: st.DataObject) -> None:
    block = 128 if name == "nvfp4" else 1
    rows = block * data.draw(st.integers(1, 5))
    found = geometry(name, default_layout(name), (rows, 192))
    cut = block * data.draw(st.integers(1, rows // block))
    for plane in found.planes:
        first, rest = found.span(plane, 0, cut), found.span(plane, cut, rows)
        if plane.name == "divisor":
            assert first == rest == (plane.offset, 4)
        else:
            assert first[0] == plane.offset
            assert first[0] + first[1] == rest[0]
            assert rest[0] + rest[1] == plane.offset + plane.bytes


@pytest.mark.parametrize(
    ("name", "layout", "shape", "message"),
    [
        ("t2_g128_fp16", "row_split_k128_v1", (2, 128), "format 't2_g128_fp16' is not known"),
        ("bf16", "row_split_k256_v1", (2, 128), "layout 'row_split_k256_v1' is not known"),
        ("bf16", "row_split_k128_v1", (2, 128), "does not hold format bf16"),
        ("q4_g64_fp16", "contiguous_le_v1", (2, 128), "does not hold format q4_g64_fp16"),
        ("q4_g64_fp16", "row_split_k128_v1", (128,), "rank 2"),
        ("q4_g64_fp16", "row_split_k128_v1", (2, 2, 128), "rank 2"),
        ("nvfp4", "block_scale_k16_m128x4_v1", (64, 64), "multiples of [128, 64]"),
        ("nvfp4", "block_scale_k16_m128x4_v1", (128, 96), "multiples of [128, 64]"),
    ],
)
def test_what_a_layout_cannot_hold_is_refused(
    name: str, layout: str, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ArtifactError) as error:
        geometry(name, layout, shape, "object 'w'")
    assert error.value.where == "object 'w'"
    assert message in str(error.value)
