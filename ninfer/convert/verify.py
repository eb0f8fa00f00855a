"""``--verify``: does a written artifact compute what its checkpoint computes?

Owns the choice of layers, the random hidden states and the verdict; ``transformers_layer`` runs the
layers. Only the tensors of one layer are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ninfer import spec
from ninfer.artifact import Artifact
from ninfer.convert.checkpoint import Checkpoint
from ninfer.convert.tensor_table import text_layer_prefix
from ninfer.errors import CheckpointError, OptionError
from ninfer.model.config import parse_text_config


@dataclass(frozen=True, slots=True)
class LayerComparison:
    """One layer: largest absolute error, and the median over positions of error over the layer's
    contribution.
    """

    index: int
    kind: str
    max_error: float
    relative: float
    bound: float

    @property
    def passed(self) -> bool:
        return self.relative <= self.bound  # a NaN fails

    def line(self) -> str:
        """One line for the terminal."""
        verdict = "ok" if self.passed else "FAILED"
        return (
            f"layer {self.index} {self.kind}: max error {self.max_error:.3g}, relative {self.relative:.3g} "
            f"(bound {self.bound:g}) {verdict}"
        )


def compare_layers(checkpoint_path: Path, artifact_path: Path, count: int) -> Iterator[LayerComparison]:
    """Compare ``count`` layers, spread evenly from the first to the last, one at a time.

    Errors: ``OptionError`` without transformers; ``CheckpointError`` when the two hold different models;
    ``ArtifactError`` when the artifact cannot be read.
    """
    backend = _backend()
    table = spec.document("convert")["verify"]
    with Checkpoint(checkpoint_path) as checkpoint, Artifact.open(artifact_path) as artifact:
        written = artifact.directory.components["text"].config
        config = parse_text_config(written)
        source_config = backend.source_config(checkpoint)
        if source_config.num_hidden_layers != config.layers or source_config.hidden_size != config.hidden:
            raise CheckpointError(
                f"{artifact_path} was not converted from {checkpoint_path}: their configs differ"
            )
        artifact_config = backend.artifact_config(written, config.moe is not None)
        bound = _bound(artifact)
        generator = np.random.default_rng(table["seed"])
        hidden = generator.standard_normal((table["positions"], config.hidden), np.float32)
        for index in chosen_layers(config.layers, count):
            source = backend.source_state(checkpoint, text_layer_prefix(checkpoint.tensors, index))
            expected = backend.run_layer(source_config, index, source, hidden)
            del source
            state = backend.artifact_state(artifact, config, index)
            found = backend.run_layer(artifact_config, index, state, hidden)
            del state
            yield _comparison(index, config.layer_types[index], hidden, expected, found, bound)


def chosen_layers(layers: int, count: int) -> list[int]:
    """At most ``count`` layer indices from 0 to ``layers`` - 1, evenly spread; one means the first."""
    return sorted({round(index) for index in np.linspace(0, layers - 1, min(count, layers)).tolist()})


def _bound(artifact: Artifact) -> float:
    bounds: dict[str, float] = spec.document("convert")["verify"]["bounds"]
    recipe = artifact.directory.provenance.get("recipe")
    if recipe not in bounds:
        raise CheckpointError(
            f"{artifact.path}: provenance.recipe is {recipe!r}, not one of {', '.join(bounds)}"
        )
    return bounds[recipe]


def _comparison(
    index: int,
    kind: str,
    hidden: np.ndarray[Any, Any],
    expected: np.ndarray[Any, Any],
    found: np.ndarray[Any, Any],
    bound: float,
) -> LayerComparison:
    error = found.astype(np.float64) - expected
    contribution = np.linalg.norm(expected.astype(np.float64) - hidden, axis=1)
    relative = np.median(np.linalg.norm(error, axis=1) / contribution)
    return LayerComparison(index, kind, float(np.abs(error).max()), float(relative), bound)


def _backend() -> Any:
    try:
        from ninfer.convert import transformers_layer
    except ImportError as error:
        if (error.name or "").startswith("ninfer"):
            raise
        raise OptionError(
            "--verify",
            f"needs transformers and torch ({error.name} is not installed): pip install transformers",
        ) from error
    return transformers_layer
