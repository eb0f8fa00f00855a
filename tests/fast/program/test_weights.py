"""Resident weights: a loaded matrix multiplies like its decoded parameter, however a binding cuts objects."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from ninfer.artifact import Artifact, ArtifactPlan, Binding, Component, PlannedTensor
from ninfer.errors import ArtifactError
from ninfer.fast.ops.linear import contract as linear
from ninfer.fast.ops.linear.formats import EVENS_FIRST
from ninfer.fast.program.weights import Matrix, WeightLoader
from tests.artifact.building import values, write
from tests.support.fast import (
    STORED_FORMATS,
    Floats,
    Poisoned,
    address,
    evens_first,
    fields,
    linear_operation,
    padded_rows,
    run,
)

ROWS = 12
# nvfp4 comes in whole tiles of 128 rows and 64 columns.
FREE_FORMATS = tuple(name for name in STORED_FORMATS if name != "nvfp4")


def artifact(path: Path, columns: int, bindings: dict[str, Binding]) -> Path:
    """One object [ROWS, columns] of every format the CPU kernels read, and ``bindings`` into them."""
    data = {name: values((ROWS, columns), seed) for seed, name in enumerate(FREE_FORMATS)}
    data["flat"] = values((columns,), 9)
    tensors = [
        PlannedTensor(f"weight/{name}", array.shape, "bf16" if name == "flat" else name)
        for name, array in data.items()
    ]
    plan = ArtifactPlan(
        components={"text": Component({"architectures": ["X"]}, resources={})},
        resources=[],
        tensors=tensors,
        bindings=bindings,
        uses=[],
        metadata={"name": "weights"},
    )
    return write(path / "w.ninfer", plan, data)


def product(matrix: Matrix, x: Floats) -> Floats:
    """``x`` times the loaded matrix."""
    natural = padded_rows(x)
    evens, y, offset, segments = evens_first(natural), Poisoned(len(x), matrix.rows), 0, []
    for segment in matrix.segments:
        source = evens if segment.format in EVENS_FIRST else natural
        named = {"FORMAT": segment.format, "ROWS": segment.rows, "K": matrix.width, "BASE": segment.base}
        named |= {
            "BASE_STRIDE": segment.base_stride,
            "HIGH": segment.high,
            "HIGH_STRIDE": segment.high_stride,
        }
        named |= {"SCALE": segment.scale, "SCALE_STRIDE": segment.scale_stride, "X": address(source)}
        named |= {"X_STRIDE": source.strides[0], "Y": y.address + 4 * offset, "Y_STRIDE": y.stride}
        segments.append(fields(linear, "SEGMENT_FIELDS", **named))
        offset += segment.rows
    assert offset == matrix.rows, f"{matrix.rows} rows asked for, {offset} in segments"
    run([linear_operation(*segments)], row_count=len(x))
    y.check_margin()
    return y.values


def check(path: Path, name: str) -> Matrix:
    """The product of every loaded row equals that of the decoded parameter."""
    with Artifact.open(path) as opened:
        decoded = opened.parameter(name)
        matrix = WeightLoader(opened).matrix(name)
    decoded = decoded.reshape(matrix.rows, matrix.columns)
    # The file is closed: the matrix stands in memory of its own.
    x = values((5, matrix.columns), 77)
    np.testing.assert_allclose(product(matrix, x), x @ decoded.T, atol=2e-5 * matrix.columns**0.5)
    return matrix


@pytest.mark.parametrize("columns", [64, 130, 192])
@pytest.mark.parametrize("name", FREE_FORMATS)
def test_whole_objects_and_row_slices(tmp_path: Path, name: str, columns: int) -> None:
    bindings = {
        "whole": Binding.whole(f"weight/{name}"),
        "slice": Binding.ranges([(f"weight/{name}", 3 * columns, 7 * columns)]),
        "last": Binding.ranges([(f"weight/{name}", 11 * columns, 12 * columns)]),
    }
    path = artifact(tmp_path, columns, bindings)
    for parameter, rows in (("whole", 12), ("slice", 4), ("last", 1)):
        matrix = check(path, parameter)
        assert (matrix.rows, matrix.columns, len(matrix.segments)) == (rows, columns, 1)


@pytest.mark.parametrize("columns", [64, 130])
def test_rows_of_several_objects_are_stacked(tmp_path: Path, columns: int) -> None:
    ranges = [(f"weight/{name}", 2 * columns, (3 + n) * columns) for n, name in enumerate(FREE_FORMATS)]
    matrix = check(artifact(tmp_path, columns, {"stacked": Binding.ranges(ranges)}), "stacked")
    assert [segment.rows for segment in matrix.segments] == [1, 2, 3, 4, 5, 6, 7]


ODD_BINDINGS = {
    "inside a row": Binding.ranges([("weight/bf16", 32, 160)]),
    "across rows": Binding.ranges([("weight/q4_g64_fp16", 96, 96 + 256)]),
    "two such parts": Binding.ranges([("weight/bf16", 32, 160), ("weight/fp32", 32, 160)]),
    "one such part": Binding.ranges([("weight/bf16", 0, 128), ("weight/fp32", 32, 160)]),
    "one axis": Binding.whole("weight/flat"),
}


@pytest.mark.parametrize("name", ODD_BINDINGS)
def test_bindings_that_are_no_rows_are_refused_or_right(tmp_path: Path, name: str) -> None:
    path = artifact(tmp_path, 128, {"odd": ODD_BINDINGS[name]})
    with contextlib.suppress(ArtifactError):
        check(path, "odd")


def one_object(path: Path, name: str, shape: tuple[int, int], bindings: dict[str, Binding]) -> Path:
    """An artifact of one object and ``bindings`` into it."""
    plan = ArtifactPlan(
        components={"text": Component({"architectures": ["X"]}, resources={})},
        resources=[],
        tensors=[PlannedTensor(f"weight/{name}", shape, name)],
        bindings=bindings,
        uses=[],
        metadata={"name": "weights"},
    )
    data = values(shape, 1)
    return write(path / "w.ninfer", plan, {name: data.astype(np.int32) if name == "int32" else data})


@pytest.mark.parametrize("columns", [64, 192])
def test_tiles_of_nvfp4_are_read_row_by_row(tmp_path: Path, columns: int) -> None:
    """Scales lie swizzled over tiles of 128 rows; slices begin anywhere, one divisor serves them all."""
    rows = {"whole": (0, 256), "slice": (100, 170), "last": (255, 256)}
    bindings = {
        name: Binding.ranges([("weight/nvfp4", begin * columns, end * columns)])
        for name, (begin, end) in rows.items()
    }
    path = one_object(tmp_path, "nvfp4", (256, columns), bindings)
    for name, (begin, end) in rows.items():
        matrix = check(path, name)
        assert (matrix.rows, matrix.columns, len(matrix.segments)) == (end - begin, columns, 1)


def test_formats_without_a_kernel_are_refused_by_name(tmp_path: Path) -> None:
    path = one_object(tmp_path, "int32", (4, 64), {"text/some": Binding.whole("weight/int32")})
    with Artifact.open(path) as opened, pytest.raises(ArtifactError, match=r"text/some.*int32"):
        WeightLoader(opened).matrix("text/some")


def test_an_object_is_resident_once(tmp_path: Path) -> None:
    """Several slices of one parent share its memory; the listener hears every byte once."""
    heard: list[int] = []
    bindings = {
        f"p{row}": Binding.ranges([("weight/q5_g64_fp16", row * 192, (row + 2) * 192)]) for row in (0, 2)
    }
    with Artifact.open(artifact(tmp_path, 192, bindings)) as opened:
        loader = WeightLoader(opened, heard.append)
        first, second = (loader.matrix(name).segments[0] for name in bindings)
        assert second.base - first.base == 2 * first.base_stride
        assert sum(heard) == ROWS * first.row_bytes
