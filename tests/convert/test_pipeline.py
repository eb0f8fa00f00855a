"""Whole conversions of nano checkpoints: every logical parameter is the right transform of the source."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from ninfer.artifact import Artifact, layouts
from ninfer.artifact.codecs import decode_rows, encode_rows
from ninfer.artifact.directory import ResourceObject
from ninfer.convert import convert, recipe_names
from ninfer.errors import ArtifactError, CheckpointError
from ninfer.model.config import check_mtp_config, parse_text_config
from ninfer.model.parameters import mtp_parameters, text_parameters
from tests.convert.checkpoints import Nano, fused_experts, nano
from tests.convert.expected import expected_parameters

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def qwen35_dtypes(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Qwen3.5 stores these two as F32 and the rest as BF16; Qwen3.6 everything as BF16."""
    return tensor.float() if name.endswith(("A_log", "linear_attn.norm.weight")) else tensor.bfloat16()


SOURCES = {
    "dense-f32-sharded": lambda: nano("dense"),
    "dense-bf16-tied": lambda: nano("dense", tied=True, dtype=BF16),
    "dense-f16-no-mtp": lambda: nano("dense", dtype=F16, mtp=False),
    "dense-infix-vision": lambda: nano("dense-vl", dtype=BF16),
    "dense-a-log-f32": lambda: nano("dense").mapped(qwen35_dtypes),
    "moe-single-experts": lambda: nano("moe", dtype=BF16),
    "moe-fused-experts": lambda: fused_experts(nano("moe", dtype=BF16)),
    "moe-infix-tied": lambda: fused_experts(nano("moe-vl", tied=True)),
}


def stored_as(format_name: str, values: np.ndarray) -> np.ndarray:
    """``values`` after the round trip through one tensor format, each parameter on its own."""
    if format_name == "bf16":
        return torch.from_numpy(values).bfloat16().float().numpy()
    if format_name == "fp32":
        return values
    geometry = layouts.geometry(format_name, layouts.default_layout(format_name), values.shape)
    return decode_rows(geometry, encode_rows(format_name, values), len(values))


@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize("source", SOURCES)
def test_every_parameter_is_its_source_rounded_to_its_format(
    source: str, recipe: str, tmp_path: Path
) -> None:
    checkpoint: Nano = SOURCES[source]()
    directory = checkpoint.write(tmp_path / source, shards=3 if "sharded" in source else 1)
    convert(directory, tmp_path / "out.ninfer", recipe, rows_per_chunk=7)
    expected = expected_parameters(checkpoint)
    with Artifact.open(tmp_path / "out.ninfer") as artifact:
        assert set(artifact.directory.bindings) == set(expected)
        for name, values in expected.items():
            (form,) = artifact.parameter_formats(name)
            assert np.array_equal(artifact.parameter(name), stored_as(form, values)), f"{name} in {form}"
            assert recipe != "bf16" or form == ("fp32" if name.endswith(("a_log", "dt_bias")) else "bf16")


@pytest.mark.parametrize("source", SOURCES)
def test_names_shapes_uses_and_config_are_what_a_loader_asks_for(source: str, tmp_path: Path) -> None:
    directory = SOURCES[source]().write(tmp_path / source)
    convert(directory, tmp_path / "out.ninfer", "groupwise-int")
    with Artifact.open(tmp_path / "out.ninfer") as artifact:
        components = artifact.directory.components
        config = parse_text_config(components["text"].config)
        wanted = list(text_parameters(config))
        assert set(components) == ({"text"} if source.endswith("no-mtp") else {"text", "mtp"})
        uses = [(p.name, use) for p in wanted for use in p.uses]
        if "mtp" in components:
            check_mtp_config(components["mtp"].config, config)
            assert components["mtp"].target == "text"
            wanted += mtp_parameters(config)
            uses = [(p.name, use) for p in wanted for use in p.uses]
            uses.append(("text/output_head", "mtp/final_hidden"))
        assert {p.name: p.shape for p in wanted} == {
            name: artifact.parameter_shape(name) for name in artifact.directory.bindings
        }
        assert sorted((use.parameter, use.input) for use in artifact.directory.uses) == sorted(uses)
        assert {use.activation_policy for use in artifact.directory.uses} == {"A16Only"}


def test_objects_come_in_order_resources_first_under_their_conventional_ids(tmp_path: Path) -> None:
    directory = nano("dense").write(tmp_path / "nano")
    convert(directory, tmp_path / "out.ninfer", "q8")
    with Artifact.open(tmp_path / "out.ninfer") as artifact:
        objects = list(artifact.directory.objects.values())
        roles = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"]
        assert [item.id for item in objects[:4]] == [f"resource/text/{role}" for role in roles]
        assert [item.id for item in objects[4:]] == [f"weight/{i:06d}" for i in range(len(objects) - 4)]
        assert not any(isinstance(item, ResourceObject) for item in objects[4:])
        for role in roles:
            assert artifact.resource("text", role) == (directory / role).read_bytes()
        for tensor in objects[4:]:
            artifact.validate(tensor.id)


def test_a_tied_head_is_the_embeddings_object(tmp_path: Path) -> None:
    directory = nano("dense", tied=True).write(tmp_path / "nano")
    done = convert(directory, tmp_path / "out.ninfer", "groupwise-int")
    with Artifact.open(tmp_path / "out.ninfer") as artifact:
        bindings = artifact.directory.bindings
        assert bindings["text/output_head"] == bindings["text/token_embedding"]
        assert artifact.weight_summary().parameters == done.parameters


def test_a_tied_checkpoint_may_store_its_head_if_it_is_the_embedding(tmp_path: Path) -> None:
    checkpoint = nano("dense", tied=True)
    checkpoint.tensors["lm_head.weight"] = checkpoint.tensors["model.embed_tokens.weight"].clone()
    convert(checkpoint.write(tmp_path / "same"), tmp_path / "same.ninfer", "bf16")
    checkpoint.tensors["lm_head.weight"][5, 5] += 1
    with pytest.raises(CheckpointError, match=r"tie_word_embeddings, but lm_head\.weight differs"):
        convert(checkpoint.write(tmp_path / "other"), tmp_path / "other.ninfer", "bf16")


def test_both_expert_spellings_and_any_sharding_give_the_same_payload(tmp_path: Path) -> None:
    checkpoint = nano("moe", dtype=BF16)
    payloads = []
    for index, (variant, shards) in enumerate(
        [(checkpoint, 1), (checkpoint, 4), (fused_experts(checkpoint), 2)]
    ):
        out = tmp_path / f"{index}.ninfer"
        convert(
            variant.write(tmp_path / str(index), shards), out, "groupwise-int", rows_per_chunk=1 + 50 * index
        )
        with Artifact.open(out) as artifact:
            start = out.stat().st_size - artifact.directory.payload_bytes
            payloads.append(out.read_bytes()[start:])
    assert payloads[0] == payloads[1] == payloads[2]


def test_vision_is_left_out_aloud(tmp_path: Path) -> None:
    checkpoint = nano("dense-vl")
    count = sum("visual" in name for name in checkpoint.tensors)
    lines: list[str] = []
    directory = checkpoint.write(tmp_path / "nano")
    done = convert(directory, tmp_path / "out.ninfer", "bf16", note=lines.append)
    assert list(done.notes) == lines
    assert lines == [f"vision: {count} tensors are left out; this component cannot be converted yet"]
    with Artifact.open(tmp_path / "out.ninfer") as artifact:
        assert artifact.directory.provenance["left_out"] == {"vision": {"tensors": count}}
        assert artifact.directory.provenance["notes"] == lines


def test_an_mtp_head_that_is_promised_but_absent_is_reported(tmp_path: Path) -> None:
    checkpoint = nano("dense", mtp=False)
    checkpoint.config["mtp_num_hidden_layers"] = 1
    done = convert(checkpoint.write(tmp_path / "nano"), tmp_path / "out.ninfer", "bf16")
    assert any(line.startswith("mtp: config.json names an MTP head") for line in done.notes)


def test_metadata_and_provenance(tmp_path: Path) -> None:
    directory = nano("dense").write(tmp_path / "qwen-nano")
    convert(directory, tmp_path / "a.ninfer", "q4")
    convert(directory, tmp_path / "b.ninfer", "q4", name="other", metadata={"licence": "none – ü"})
    with Artifact.open(tmp_path / "a.ninfer") as a, Artifact.open(tmp_path / "b.ninfer") as b:
        assert (a.public_name, b.public_name) == ("qwen-nano", "other")
        assert b.directory.metadata == {"name": "other", "licence": "none – ü"}
        provenance = a.directory.provenance
        assert (provenance["converter"], provenance["recipe"]) == ("ninfer-convert", "q4")
        assert provenance["sources"] == {"checkpoint": {"path": str(directory)}}


def test_an_existing_output_is_never_touched(tmp_path: Path) -> None:
    directory = nano("dense").write(tmp_path / "nano")
    out = tmp_path / "out.ninfer"
    out.write_bytes(b"precious")
    with pytest.raises(ArtifactError, match="exists"):
        convert(directory, out, "bf16")
    assert out.read_bytes() == b"precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nano", "out.ninfer"]


def test_a_failure_on_the_way_leaves_nothing_behind(tmp_path: Path) -> None:
    checkpoint = nano("dense")
    checkpoint.tensors["model.layers.3.mlp.down_proj.weight"][0, 0] = 1e30  # no fp16 scale reaches that
    with pytest.raises(CheckpointError, match="text/layers/3/mlp/down as q8_g32_fp16"):
        convert(checkpoint.write(tmp_path / "big"), tmp_path / "out.ninfer", "q8")
    checkpoint.tensors["model.layers.3.mlp.down_proj.weight"][0, 0] = torch.nan
    with pytest.raises(CheckpointError, match=r"tensor model.layers.3.mlp.down_proj.weight .* not finite"):
        convert(checkpoint.write(tmp_path / "nan"), tmp_path / "out.ninfer", "bf16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big", "nan"]


@pytest.mark.parametrize("recipe", recipe_names())
def test_memory_is_bounded_by_the_chunk_not_by_the_model(recipe: str, tmp_path: Path) -> None:
    checkpoint = nano("dense", tied=True, dtype=BF16)
    rows = 100_000
    checkpoint.config["vocab_size"] = rows
    checkpoint.tensors["model.embed_tokens.weight"] = torch.randn(rows, 64).bfloat16()
    directory = checkpoint.write(tmp_path / "nano")
    tracemalloc.start()
    try:
        convert(directory, tmp_path / "out.ninfer", recipe)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20  # the embedding alone is 12.8 MB as stored, 25.6 MB as float32


def test_a_small_file_cap_splits_into_parts(tmp_path: Path) -> None:
    checkpoint = nano("dense")
    directory = checkpoint.write(tmp_path / "nano")
    convert(directory, tmp_path / "out.ninfer", "bf16", max_file_bytes=300_000)
    with Artifact.open(tmp_path / "out.ninfer") as artifact:
        assert len(artifact.directory.files) > 2
        for name, values in expected_parameters(checkpoint).items():
            (form,) = artifact.parameter_formats(name)
            assert np.array_equal(artifact.parameter(name), stored_as(form, values)), name
