"""``--verify`` passes what is right and fails what is wrong."""

from __future__ import annotations

import builtins
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ninfer.artifact import Artifact
from ninfer.convert import convert, recipe_names
from ninfer.convert.verify import chosen_layers, compare_layers
from ninfer.errors import CheckpointError, OptionError
from tests.convert.checkpoints import Nano, fused_experts, nano

SOURCES = {
    "dense": lambda: nano("dense-vl", dtype=torch.bfloat16),
    "moe": lambda: nano("moe", dtype=torch.bfloat16),
    "moe-fused": lambda: fused_experts(nano("moe-vl", dtype=torch.bfloat16)),
}


@pytest.mark.parametrize("source", SOURCES)
def test_bf16_of_a_bf16_source_is_exact(source: str, tmp_path: Path) -> None:
    directory = SOURCES[source]().write(tmp_path / "nano")
    convert(directory, tmp_path / "out.ninfer", "bf16")
    layers = list(compare_layers(directory, tmp_path / "out.ninfer", 4))
    assert [(layer.index, layer.kind) for layer in layers] == [
        (0, "linear_attention"),
        (1, "linear_attention"),
        (2, "linear_attention"),
        (3, "full_attention"),
    ]
    assert all(layer.max_error <= 1e-5 and layer.passed for layer in layers)


@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_every_recipe_stays_below_its_bound_on_float32_sources(
    kind: str, recipe: str, tmp_path: Path
) -> None:
    directory = nano(kind).write(tmp_path / "nano")
    convert(directory, tmp_path / "out.ninfer", recipe)
    for layer in compare_layers(directory, tmp_path / "out.ninfer", 2):
        assert layer.passed, layer.line()
        assert layer.relative > 0
        assert layer.line().endswith("ok")


def swapped(checkpoint: Nano, fault: str) -> Nano:
    """A checkpoint whose conversion by wrong tables would look like this."""
    tensors = dict(checkpoint.tensors)
    for name, tensor in checkpoint.tensors.items():
        if fault == "query and gate" and name.endswith("q_proj.weight"):
            tensors[name] = tensor.view(4, 2, 64, 64).flip(1).reshape(tensor.shape)
        elif fault == "query halves" and name.endswith("q_proj.weight"):
            tensors[name] = tensor.view(2, 4, 64, 64).transpose(0, 1).reshape(tensor.shape)
        elif fault == "query and key" and name.endswith("in_proj_qkv.weight"):
            tensors[name] = torch.cat([tensor[64:128], tensor[:64], tensor[128:]])
        elif fault == "taps" and name.endswith("conv1d.weight"):
            tensors[name] = tensor.flip(2)
        elif fault == "a and b" and name.endswith("in_proj_a.weight"):
            tensors[name] = checkpoint.tensors[name.replace("in_proj_a", "in_proj_b")]
        elif fault == "gate and up" and name.endswith("gate_proj.weight"):
            tensors[name] = checkpoint.tensors[name.replace("gate_proj", "up_proj")]
    return Nano(checkpoint.config, {n: t.contiguous().clone() for n, t in tensors.items()}, checkpoint.files)


@pytest.mark.parametrize(
    "fault", ["query and gate", "query halves", "query and key", "taps", "a and b", "gate and up"]
)
def test_a_wrong_transform_fails(fault: str, tmp_path: Path) -> None:
    checkpoint = nano("dense", dtype=torch.bfloat16)
    right = checkpoint.write(tmp_path / "right")
    wrong = swapped(checkpoint, fault).write(tmp_path / "wrong")
    convert(wrong, tmp_path / "out.ninfer", "bf16")
    layers = list(compare_layers(right, tmp_path / "out.ninfer", 4))
    assert not all(layer.passed for layer in layers)
    assert any(layer.line().endswith("FAILED") for layer in layers)


def test_a_wrong_config_fails(tmp_path: Path) -> None:
    checkpoint = nano("dense", dtype=torch.bfloat16)
    right = checkpoint.write(tmp_path / "right")
    shutil.copytree(right, tmp_path / "wrong")
    checkpoint.config["rope_parameters"]["rope_theta"] = 1e4
    wrong = checkpoint.write(tmp_path / "wrong")
    convert(wrong, tmp_path / "out.ninfer", "bf16")
    *linear, attention = compare_layers(right, tmp_path / "out.ninfer", 4)
    assert all(layer.passed for layer in linear)
    assert not attention.passed


def test_another_model_is_refused(tmp_path: Path) -> None:
    directory = nano("dense").write(tmp_path / "nano")
    convert(directory, tmp_path / "out.ninfer", "bf16")
    other = nano("dense")
    other.config |= {"num_hidden_layers": 3, "layer_types": other.config["layer_types"][:3]}
    other.tensors = {n: t for n, t in other.tensors.items() if ".layers.3." not in n}
    with pytest.raises(CheckpointError, match="was not converted from"):
        list(compare_layers(other.write(tmp_path / "other"), tmp_path / "out.ninfer", 2))


def test_without_transformers_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = nano("dense").write(tmp_path / "nano")
    convert(directory, tmp_path / "out.ninfer", "bf16")
    plain = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "transformers":
            raise ModuleNotFoundError("No module named 'transformers'", name="transformers")
        return plain(name, *rest)

    monkeypatch.delitem(sys.modules, "ninfer.convert.transformers_layer", raising=False)
    monkeypatch.delattr("ninfer.convert.transformers_layer", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(OptionError, match=r"--verify: needs transformers .*pip install transformers"):
        next(compare_layers(directory, tmp_path / "out.ninfer", 1))


@pytest.mark.parametrize(
    ("layers", "count", "chosen"),
    [
        (4, 1, [0]),
        (4, 2, [0, 3]),
        (4, 9, [0, 1, 2, 3]),
        (64, 3, [0, 32, 63]),
        (1, 5, [0]),
        (24, 24, list(range(24))),
    ],
)
def test_chosen_layers_are_spread_over_the_model(layers: int, count: int, chosen: list[int]) -> None:
    assert chosen_layers(layers, count) == chosen


def test_the_artifacts_own_values_are_what_is_run(tmp_path: Path) -> None:
    """The comparison reads the file, not a cached copy: a flipped weight word shows."""
    directory = nano("dense", dtype=torch.bfloat16).write(tmp_path / "nano")
    out = tmp_path / "out.ninfer"
    convert(directory, out, "bf16")
    with Artifact.open(out) as artifact:
        payload = out.stat().st_size - artifact.directory.payload_bytes
        binding = artifact.directory.bindings["text/layers/0/mlp/down"]
        target = artifact.directory.tensor(str(binding.object))
    content = bytearray(out.read_bytes())
    words = np.frombuffer(content, "<u2", count=target.elements, offset=payload + target.offset)
    words ^= 0x8000
    out.write_bytes(content)
    assert not next(iter(compare_layers(directory, out, 1))).passed
