"""Finding and opening a checkpoint directory's files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ninfer.convert.checkpoint import Checkpoint
from ninfer.errors import CheckpointError

INDEX = "model.safetensors.index.json"


def directory(path: Path, weight_map: object = None) -> Path:
    """Two shards with one tensor each, and an index."""
    (path / "config.json").write_text("{}")
    save_file({"a": torch.arange(4.0)}, path / "one.safetensors")
    save_file({"b": torch.arange(6.0)}, path / "two.safetensors")
    content = {"a": "one.safetensors", "b": "two.safetensors"} if weight_map is None else weight_map
    (path / INDEX).write_text(json.dumps({"weight_map": content}))
    return path


def test_tensors_are_found_in_their_shards(tmp_path: Path) -> None:
    with Checkpoint(directory(tmp_path)) as checkpoint:
        assert sorted(checkpoint.tensors) == ["a", "b"]
        assert np.array_equal(checkpoint.read("b", 2, 5), [2, 3, 4])


def test_a_single_file_needs_no_index(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": torch.arange(4.0)}, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path) as checkpoint:
        assert np.array_equal(checkpoint.read("a", 0, 4), [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "one.safetensors", "c": "two.safetensors"}, "tensor c, listed in .*, is missing"),
        ({"a": "one.safetensors"}, None),
        ({"a": "one.safetensors", "b": "one.safetensors"}, "tensor b, listed in .*, is missing"),
        ({"a": "one.safetensors", "b": "three.safetensors"}, r"three.safetensors: No such file"),
        ({"a": "../one.safetensors"}, "is not a file name"),
        (["one.safetensors"], "weight_map must map"),
        ({"a": 1}, "weight_map must map"),
    ],
)
def test_an_index_that_does_not_fit_its_shards_is_refused(
    weight_map: object, message: str | None, tmp_path: Path
) -> None:
    path = directory(tmp_path, weight_map)
    if message is None:  # a shard no tensor is listed in is never opened
        with Checkpoint(path) as checkpoint:
            assert list(checkpoint.tensors) == ["a"]
        return
    with pytest.raises(CheckpointError, match=message):
        Checkpoint(path)


def test_a_tensor_the_index_does_not_list_is_refused(tmp_path: Path) -> None:
    path = directory(tmp_path)
    save_file({"a": torch.arange(4.0), "hidden": torch.ones(1)}, path / "one.safetensors")
    with pytest.raises(CheckpointError, match="tensor hidden is not listed"):
        Checkpoint(path)


def test_what_is_not_a_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a directory"):
        Checkpoint(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"config\.json: missing"):
        Checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"config\.json: must hold a JSON object"):
        Checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{,}")
    with pytest.raises(CheckpointError, match=r"config\.json: not readable as JSON"):
        Checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"holds neither model\.safetensors nor"):
        Checkpoint(tmp_path)
