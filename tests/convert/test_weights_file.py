"""Reading one safetensors file: exact values, and nothing but ``CheckpointError`` from a broken one."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from ninfer.convert.weights_file import WeightsFile
from ninfer.errors import CheckpointError


def write(path: Path, header: Any, data: bytes) -> Path:
    """A file with any header at all."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_any_range_is_the_librarys_value_widened(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(3)
    tensors = {
        "a": torch.randn(5, 7).to(dtype),
        "b": (torch.randn(3) * 1e-3).to(dtype),
        "empty": torch.ones(0).to(dtype),
    }
    save_file(tensors, tmp_path / "w.safetensors")
    with WeightsFile(tmp_path / "w.safetensors") as file:
        assert {name: tensor.shape for name, tensor in file.tensors.items()} == {
            "a": (5, 7),
            "b": (3,),
            "empty": (0,),
        }
        for name, tensor in tensors.items():
            flat = tensor.float().reshape(-1).numpy()
            for begin in range(len(flat) + 1):
                found = file.read(name, begin, len(flat))
                assert found.dtype == np.float32
                assert np.array_equal(found, flat[begin:])


def test_other_dtypes_stand_in_the_header_but_are_not_read(tmp_path: Path) -> None:
    save_file({"packed": torch.ones(4, dtype=torch.int32)}, tmp_path / "w.safetensors")
    with (
        WeightsFile(tmp_path / "w.safetensors") as file,
        pytest.raises(CheckpointError, match="tensor packed has dtype I32, not one of F32, BF16, F16"),
    ):
        file.read("packed", 0, 4)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_is_refused(value: float, tmp_path: Path) -> None:
    save_file({"w": torch.tensor([1.0, value])}, tmp_path / "w.safetensors")
    with WeightsFile(tmp_path / "w.safetensors") as file:
        assert file.read("w", 0, 1).tolist() == [1.0]
        with pytest.raises(CheckpointError, match="tensor w holds a value that is not finite"):
            file.read("w", 0, 2)


ROW = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[1]",
        {"w": {**ROW, "data_offsets": [0, 9]}},
        {"w": {**ROW, "data_offsets": [4, 12]}},
        {"w": {**ROW, "data_offsets": [8, 0]}},
        {"w": {**ROW, "data_offsets": [-8, 0]}},
        {"w": {**ROW, "data_offsets": [0]}},
        {"w": {**ROW, "shape": [3]}},
        {"w": {**ROW, "shape": [-2]}},
        {"w": {**ROW, "shape": ["2"]}},
        {"w": {**ROW, "shape": [[2]]}},
        {"w": {**ROW, "dtype": ["F32"]}},
        {"w": {"dtype": "F32", "shape": [2]}},
        {"w": 5},
    ],
)
def test_a_broken_header_is_refused(header: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "w.safetensors", header, bytes(8))
    with pytest.raises(CheckpointError, match=r"w\.safetensors: (malformed|not a) safetensors"):
        WeightsFile(path)


def test_a_missing_or_tiny_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        WeightsFile(tmp_path / "none.safetensors")
    (tmp_path / "tiny").write_bytes(b"\0\0\0")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        WeightsFile(tmp_path / "tiny")


@given(
    edits=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), cut=st.integers(0, 220)
)
def test_mutated_files_raise_nothing_but_checkpoint_errors(
    edits: list[tuple[int, int]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("mutated") / "w.safetensors"
    header = {
        "__metadata__": {"format": "pt"},
        "w": ROW,
        "v": {**ROW, "dtype": "BF16", "data_offsets": [8, 12]},
    }
    content = bytearray(write(path, header, np.arange(3, dtype="<f4").tobytes()).read_bytes())
    for place, byte in edits:
        content[place % len(content)] = byte
    path.write_bytes(content[: max(cut, 1)] if cut < 200 and edits else content)
    with contextlib.suppress(CheckpointError), WeightsFile(path) as file:
        for name, tensor in file.tensors.items():
            if tensor.elements <= 16:
                file.read(name, 0, tensor.elements)
