"""Where a plan's bytes come to lie: order, alignment, text padding, the split over files, and refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.artifact import ArtifactPlan, Binding, Component, PlannedResource, PlannedTensor, Use
from ninfer.artifact.plan import place
from ninfer.errors import ArtifactError

TEXT = Component({"architectures": ["X"]})
NO_CAP = 1 << 62


def plan(**changes: Any) -> ArtifactPlan:
    """Two resources of odd length and three tensors."""
    base = ArtifactPlan(
        components={"text": Component({"architectures": ["X"]}, resources={"a": "ra", "b": "rb"})},
        resources=[PlannedResource("ra", b"x" * 5), PlannedResource("rb", b"y" * 300)],
        tensors=[
            PlannedTensor("w0", (2, 130), "q5_g64_fp16"),
            PlannedTensor("w1", (3,), "bf16"),
            PlannedTensor("aux", (), "fp32"),
        ],
        bindings={"p": Binding.whole("w0"), "q": Binding.ranges([("w1", 1, 3)])},
        uses=[Use("p", "in", "AllowA8", {"activation_input_divisor": Binding.whole("aux")})],
    )
    return dataclasses.replace(base, **changes)


def test_objects_follow_each_other_aligned() -> None:
    placed = place(plan(), "e.ninfer", NO_CAP)
    offsets = {found.id: (found.offset, found.bytes) for found in placed.directory.objects.values()}
    assert offsets == {"ra": (0, 5), "rb": (5, 300), "w0": (512, 528), "w1": (1280, 6), "aux": (1536, 4)}
    assert placed.directory.files[0].payload_bytes == 1540
    assert placed.directory.tensor("w0").layout == "row_split_k128_v1"


def test_text_is_padded_with_blanks_to_the_payload() -> None:
    placed = place(plan(), "e.ninfer", NO_CAP)
    assert (32 + len(placed.text)) % 4096 == 0
    assert placed.payload_start == 32 + len(placed.text)
    assert placed.text.startswith(b'{"components":')
    assert placed.text.rstrip(b" ").endswith(b"}")


@given(size=st.integers(1, 60_000), cap=st.integers(8192, 40_000))
def test_files_split_at_whole_pages_and_the_last_takes_the_rest(size: int, cap: int) -> None:
    tensors = [PlannedTensor("w", (size,), "fp32")]
    placed = place(
        plan(
            components={"text": TEXT},
            resources=[],
            tensors=tensors,
            bindings={"p": Binding.whole("w")},
            uses=[],
        ),
        "e.ninfer",
        cap,
    )
    files, start = placed.directory.files, placed.payload_start
    assert placed.directory.payload_bytes == 4 * size
    if start + 4 * size <= cap:
        assert len(files) == 1
        return
    assert files[0].payload_bytes == (cap - start) // 4096 * 4096
    assert all(file.payload_bytes == (cap - 4096) // 4096 * 4096 for file in files[1:-1])
    assert 0 < files[-1].payload_bytes <= (cap - 4096) // 4096 * 4096
    assert [file.path for file in files] == [None, *(f"e.ninfer.part-{i:04d}" for i in range(1, len(files)))]


def test_a_long_files_table_grows_the_room_for_the_text() -> None:
    tensors = [PlannedTensor("w", (300_000,), "fp32")]
    bare = plan(
        components={"text": TEXT}, resources=[], tensors=tensors, bindings={"p": Binding.whole("w")}, uses=[]
    )
    name = "e" * 150
    one, many = place(bare, name, NO_CAP), place(bare, name, 1 << 15)
    assert many.payload_start > one.payload_start == 4096
    assert len(many.directory.files) >= 40


@pytest.mark.parametrize("cap", [0, 4096, 5635])
def test_a_cap_without_room_is_refused(cap: int) -> None:
    with pytest.raises(ArtifactError, match="max_file_bytes"):
        place(plan(), "e.ninfer", cap)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensors": [PlannedTensor("w0", (2, 130), "q3")]}, "object 'w0': format 'q3' is not known"),
        ({"tensors": [PlannedTensor("w0", (2, 130), "nvfp4")]}, "multiples of"),
        ({"tensors": [PlannedTensor("w0", (2, 0), "bf16")]}, "objects"),
        ({"tensors": [PlannedTensor("w0", (2, 2), "bf16", "row_scale_v1")]}, "does not hold"),
        ({"resources": [PlannedResource("ra", b""), PlannedResource("rb", b"y")]}, "objects[0].bytes"),
        ({"resources": [PlannedResource("ra", b"x")]}, "components.text.resources.b"),
        ({"resources": [PlannedResource("ra", b"x"), PlannedResource("ra", b"y")]}, "stands twice"),
        ({"resources": [PlannedResource("w1", b"x")]}, "stands twice"),
        ({"bindings": {"p": Binding.whole("none")}}, "bindings['p'].object"),
        ({"bindings": {"p": Binding()}}, "bindings['p']"),
        ({"bindings": {"p": Binding.ranges([("w1", 0, 4)])}}, "bindings['p'].parts[0].range"),
        ({"uses": [Use("none", "in")]}, "uses[0].parameter"),
        ({"uses": [Use("p", "in", "A8")]}, "uses[0].activation_policy"),
        ({"components": {"mtp": TEXT}}, "'text' is missing"),
        ({"metadata": {"name": ""}}, "metadata.name"),
        ({"metadata": {"x": float("nan")}}, "directory"),
        ({"provenance": {"x": "\udc80"}}, "directory"),
    ],
)
def test_a_plan_the_reader_would_refuse_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError) as error:
        place(plan(**changes), "e.ninfer", NO_CAP)
    assert message in str(error.value)
