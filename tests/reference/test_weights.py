"""Loading an artifact's parameters by logical name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from ninfer.artifact import Artifact
from ninfer.errors import ArtifactError
from ninfer.model.config import TextConfig, parse_text_config
from ninfer.reference.weights import load_mtp, load_text
from tests.support.nano import ROWS
from tests.support.nano_weights import (
    Kind,
    artifact_config,
    checkpoint_tensors,
    logical_weights,
    text_config_members,
)


def config_of(artifact: Artifact) -> TextConfig:
    return parse_text_config(artifact.directory.components["text"].config)


@pytest.mark.parametrize(
    ("fixture", "kind", "tied"),
    [("dense_artifact", "dense", False), ("moe_artifact", "moe", False), ("tied_artifact", "dense", True)],
)
def test_converted_weights_equal_the_checkpoint_s(
    request: pytest.FixtureRequest, fixture: str, kind: Kind, tied: bool
) -> None:
    members = text_config_members(kind, tied, ROWS)
    wanted = logical_weights(members, checkpoint_tensors(members))
    with Artifact.open(request.getfixturevalue(fixture)) as artifact:
        config = config_of(artifact)
        found = load_text(artifact, config, torch.float32) | load_mtp(artifact, config, torch.float32)
    # An artifact stores the float32 nearest to the checkpoint's epsilon.
    assert config.rms_eps == pytest.approx(1e-6, rel=1e-7)
    assert dataclasses.replace(config, rms_eps=1e-6) == artifact_config(members)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_tied_head_is_the_embedding_itself(tied_artifact: Path) -> None:
    with Artifact.open(tied_artifact) as artifact:
        weights = load_text(artifact, config_of(artifact), torch.float32)
    assert weights["text/output_head"] is weights["text/token_embedding"]


def test_float64_is_the_same_numbers(dense_artifact: Path) -> None:
    with Artifact.open(dense_artifact) as artifact:
        single, double = (load_text(artifact, config_of(artifact), d) for d in (torch.float32, torch.float64))
    assert all(double[name].dtype == torch.float64 for name in double)
    assert all(torch.equal(double[name], single[name].double()) for name in double)


def test_weights_outlive_the_file(dense_artifact: Path) -> None:
    with Artifact.open(dense_artifact) as artifact:
        weights = load_text(artifact, config_of(artifact), torch.float32)
    weights["text/final_norm"] += 1  # ours to write, not the file's pages


def test_progress_reaches_the_whole(dense_artifact: Path) -> None:
    heard: list[tuple[int, int]] = []
    with Artifact.open(dense_artifact) as artifact:
        config = config_of(artifact)
        weights = load_text(artifact, config, torch.float32, lambda *now: heard.append(now))
    total = sum(weight.numel() for weight in weights.values())
    assert heard[-1] == (total, total)
    assert [loaded for loaded, _ in heard] == sorted({loaded for loaded, _ in heard})


def test_a_shape_the_config_contradicts_is_refused_by_name(dense_artifact: Path) -> None:
    with Artifact.open(dense_artifact) as artifact:
        wider = dataclasses.replace(config_of(artifact), mlp=256)
        with pytest.raises(ArtifactError, match=r"text/layers/0/mlp/gate.*\(128, 64\).*\(256, 64\)"):
            load_text(artifact, wider, torch.float32)


def test_a_missing_head_is_an_artifact_error(tmp_path: Path) -> None:
    from tests.support.nano import nano_artifact

    with (
        Artifact.open(nano_artifact(tmp_path, mtp=False)) as artifact,
        pytest.raises(ArtifactError, match="mtp"),
    ):
        load_mtp(artifact, config_of(artifact), torch.float32)
