"""A model's weights are those its config asks for, or the artifact is refused: kernels trust addresses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ninfer.artifact import Artifact
from ninfer.errors import ArtifactError
from ninfer.fast.program.parameters import check_geometry, load_text_weights
from ninfer.fast.program.weights import WeightLoader
from ninfer.model.config import TextConfig
from tests.fast.program.models import read_config
from tests.support.nano_weights import artifact_config, text_config_members

Artifacts = Callable[..., Path]


def nested(config: TextConfig, part: str, **changes: Any) -> TextConfig:
    """The config with members of one part changed."""
    return replace(config, **{part: replace(getattr(config, part), **changes)})


WRONG: dict[str, tuple[str, Callable[[TextConfig], TextConfig]]] = {
    "vocab": ("dense", lambda c: replace(c, vocab=c.vocab - 64)),
    "hidden": ("dense", lambda c: replace(c, hidden=128)),
    "mlp": ("dense", lambda c: replace(c, mlp=64)),
    "query-heads": ("dense", lambda c: nested(c, "attention", query_heads=2)),
    "kv-heads": ("dense", lambda c: nested(c, "attention", kv_heads=1)),
    "head-dim": ("dense", lambda c: nested(c, "attention", head_dim=128)),
    "gdn-heads": ("dense", lambda c: nested(c, "gdn", value_heads=2)),
    "gdn-key-dim": ("dense", lambda c: nested(c, "gdn", key_dim=16)),
    "gdn-value-dim": ("dense", lambda c: nested(c, "gdn", value_dim=64)),
    "taps": ("dense", lambda c: nested(c, "gdn", taps=3)),
    "expert-width": ("moe", lambda c: nested(c, "moe", expert_mlp=32)),
    "shared-width": ("moe", lambda c: nested(c, "moe", shared_mlp=32)),
    "experts": ("moe", lambda c: nested(c, "moe", experts=9)),
    "fewer-experts": ("moe", lambda c: nested(c, "moe", experts=7)),
}


@pytest.mark.parametrize("name", WRONG)
def test_weights_of_another_shape_are_refused_by_name(artifact: Artifacts, name: str) -> None:
    kind, change = WRONG[name]
    with Artifact.open(artifact(kind)) as opened:
        with pytest.raises(ArtifactError, match="text/"):
            load_text_weights(WeightLoader(opened), change(read_config(opened)))
        load_text_weights(WeightLoader(opened), read_config(opened))


@pytest.mark.parametrize(
    ("member", "value"),
    [("head_dim", 96), ("linear_key_head_dim", 24), ("linear_value_head_dim", 48)],
)
def test_geometry_that_vectors_cannot_cover_is_refused_by_member(member: str, value: int) -> None:
    changes: dict[str, Any] = {member: value}
    if member == "head_dim":
        rope = text_config_members("dense")["rope_parameters"]
        changes["rope_parameters"] = {**rope, "mrope_section": [4, 4, 4]}
    config = artifact_config(text_config_members("dense", **changes))
    with pytest.raises(ArtifactError, match=member):
        check_geometry(config)
