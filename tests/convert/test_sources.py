"""A checkpoint holds exactly its architecture's tensors, in their shapes, or it is refused by name."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ninfer.convert.architecture import read_architecture
from ninfer.convert.checkpoint import Checkpoint
from ninfer.convert.sources import Run, Source, has_mtp, left_out_components, locate
from ninfer.convert.tensor_table import SourceTensor
from ninfer.errors import CheckpointError
from tests.convert.checkpoints import Nano, fused_experts, nano


def located(checkpoint: Nano, directory: Path) -> None:
    """Locate every source of a written copy."""
    with Checkpoint(checkpoint.write(directory)) as opened:
        locate(opened, read_architecture(opened.config).text, has_mtp(opened.tensors))


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        "model.layers.0.linear_attn.A_log",
        "model.layers.2.input_layernorm.weight",
        "model.layers.3.self_attn.q_norm.weight",
        "model.layers.3.mlp.up_proj.weight",
        "mtp.fc.weight",
        "mtp.layers.0.self_attn.v_proj.weight",
    ],
)
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    checkpoint = nano("dense")
    del checkpoint.tensors[name]
    with pytest.raises(CheckpointError, match=f"missing tensors: .*{name}"):
        located(checkpoint, tmp_path)


@pytest.mark.parametrize("name", ["mlp.experts.5.up_proj.weight", "mlp.experts.down_proj", "mlp.gate.weight"])
def test_a_missing_expert_is_named(name: str, tmp_path: Path) -> None:
    checkpoint = nano("moe") if ".5." in name else fused_experts(nano("moe"))
    del checkpoint.tensors[f"model.layers.1.{name}"]
    with pytest.raises(CheckpointError, match=f"missing tensors: model.layers.1.{name}"):
        located(checkpoint, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.4.input_layernorm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.linear_attn.in_proj_qkv.weight_scale",
        "model.layers.3.self_attn.q_proj.bias",
        "mtp.layers.1.input_layernorm.weight",
        "model.audio.proj.weight",
    ],
)
def test_an_unknown_tensor_is_named(name: str, tmp_path: Path) -> None:
    checkpoint = nano("dense")
    checkpoint.tensors[name] = torch.ones(64)
    with pytest.raises(CheckpointError, match=f"unknown tensors: {name}"):
        located(checkpoint, tmp_path)


def test_many_unknown_tensors_are_counted(tmp_path: Path) -> None:
    checkpoint = nano("dense")
    checkpoint.tensors |= {f"extra.{index:02d}": torch.ones(1) for index in range(30)}
    with pytest.raises(CheckpointError, match=r"extra.00, .*extra.07 and 22 more"):
        located(checkpoint, tmp_path)


def test_vision_and_rotary_tables_may_be_there(tmp_path: Path) -> None:
    checkpoint = nano("dense")
    checkpoint.tensors["model.visual.merger.norm.weight"] = torch.ones(4)
    checkpoint.tensors["model.layers.3.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    located(checkpoint, tmp_path)
    assert left_out_components(checkpoint.tensors) == {"vision": 1}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.embed_tokens.weight", (301, 64)),
        ("model.layers.3.self_attn.q_proj.weight", (256, 64)),
        ("model.layers.0.linear_attn.conv1d.weight", (256, 4)),
        ("model.layers.0.linear_attn.in_proj_qkv.weight", (64, 256)),
        ("mtp.fc.weight", (64, 64)),
    ],
)
def test_a_wrong_shape_is_named_with_the_right_one(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    checkpoint = nano("dense")
    right = list(checkpoint.tensors[name].shape)
    checkpoint.tensors[name] = torch.ones(shape)
    with pytest.raises(CheckpointError) as caught:
        located(checkpoint, tmp_path)
    assert str(caught.value) == f"tensor {name} has shape {list(shape)}, config.json asks for {right}"


def test_a_dtype_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    checkpoint = nano("dense")
    name = "model.layers.1.mlp.up_proj.weight"
    checkpoint.tensors[name] = checkpoint.tensors[name].to(torch.float8_e4m3fn)
    with pytest.raises(CheckpointError, match=f"tensor {name} has dtype F8_E4M3, not one of F32, BF16, F16"):
        located(checkpoint, tmp_path)


def test_a_checkpoint_of_neither_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither model.language_model.embed_tokens.weight nor"):
        located(nano("dense").renamed(lambda name: f"transformer.{name}"), tmp_path)


def test_whole_fused_expert_tensors_are_read_in_one_run(tmp_path: Path) -> None:
    directory = fused_experts(nano("moe")).write(tmp_path)
    with Checkpoint(directory) as opened:
        sources = locate(opened, read_architecture(opened.config).text, True)
        runs = [
            run
            for e in range(8)
            for part in ("gate", "up")
            for run in sources[f"text/layers/0/moe/experts/{e}/{part}"].runs
        ]
    assert Source(runs).runs == (Run("model.layers.0.mlp.experts.gate_up_proj", 0, 8 * 64 * 64),)


class _Flat:
    """Stands for a checkpoint: tensor ``t`` holds 0, 1, 2, …"""

    def read(self, name: str, begin: int, end: int) -> np.ndarray:
        assert name == "t"
        return np.arange(begin, end, dtype=np.float32)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    order=st.randoms(use_true_random=False),
    cut=st.tuples(st.integers(0, 80), st.integers(0, 80)),
)
def test_any_range_of_any_runs_is_the_range_of_their_concatenation(lengths, order, cut) -> None:  # type: ignore[no-untyped-def]
    starts = np.cumsum([0, *lengths])
    runs = [Run("t", int(a), int(b)) for a, b in pairwise(starts)]
    order.shuffle(runs)
    whole = np.concatenate([np.arange(run.begin, run.end) for run in runs])
    begin, end = (min(value, len(whole)) for value in sorted(cut))
    source = Source(runs)
    assert source.elements == len(whole)
    assert np.array_equal(source.read(_Flat(), begin, end), whole[begin:end])  # type: ignore[arg-type]


@given(
    parts=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    rounds=st.integers(1, 4),
    width=st.integers(1, 5),
)
def test_cutting_a_tensor_covers_it_once_in_order(parts: list[int], rounds: int, width: int) -> None:
    names = tuple((f"p{index}", count) for index, count in enumerate(parts))
    tensor = SourceTensor("t", (rounds * sum(parts), width), names, False, False)
    pieces = list(tensor.cut())
    assert [name for name, _, _ in pieces] == [name for name, _ in names] * rounds
    assert [begin for _, begin, _ in pieces] == [0, *(end for _, _, end in pieces[:-1])]
    assert pieces[-1][2] == rounds * sum(parts) * width
