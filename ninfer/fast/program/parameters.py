"""A text model's resident weights by role, loaded from an artifact through its logical names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.errors import ArtifactError
from ninfer.fast.program.weights import Matrix, WeightLoader
from ninfer.model.config import TextConfig
from ninfer.model.parameters import text_parameters

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWeights:
    """Gated attention; norms hold 1 + w."""

    query: Matrix
    gate: Matrix
    key: Matrix
    value: Matrix
    output: Matrix
    query_norm: Vector
    key_norm: Vector


@dataclass(frozen=True, slots=True, eq=False)
class GdnWeights:
    """Gated DeltaNet; ``convolution`` [taps, channels], ``norm`` plain."""

    query: Matrix
    key: Matrix
    value: Matrix
    z: Matrix
    a_projection: Matrix
    b_projection: Matrix
    output: Matrix
    a_log: Vector
    dt_bias: Vector
    convolution: Vector
    norm: Vector


@dataclass(frozen=True, slots=True, eq=False)
class GatedMatrices:
    """A SwiGLU feed-forward."""

    gate: Matrix
    up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True, eq=False)
class ExpertWeights:
    """A mixture: router, routed experts in order, the shared one and its score."""

    router: Matrix
    shared_score: Matrix
    shared: GatedMatrices
    routed: tuple[GatedMatrices, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """One decoder layer: exactly one mixer and one feed-forward are set."""

    input_norm: Vector
    post_attention_norm: Vector
    attention: AttentionWeights | None
    gdn: GdnWeights | None
    mlp: GatedMatrices | None
    experts: ExpertWeights | None


@dataclass(frozen=True, slots=True, eq=False)
class TextWeights:
    """A text backbone; a tied head is the embedding's own matrix."""

    embedding: Matrix
    layers: tuple[LayerWeights, ...]
    final_norm: Vector
    head: Matrix


def matrices(weights: object) -> Iterator[Matrix]:
    """Every matrix of some weights, however deep it stands."""
    if isinstance(weights, Matrix):
        yield weights
    elif isinstance(weights, tuple):
        for part in weights:
            yield from matrices(part)
    elif is_dataclass(weights):
        for field in fields(weights):
            yield from matrices(getattr(weights, field.name))


def load_text_weights(loader: WeightLoader, config: TextConfig) -> TextWeights:
    """Load every parameter of the text model.

    Errors: ``ArtifactError`` for a shape or format that the CPU kernels cannot compute.
    """
    check_geometry(config)
    for parameter in text_parameters(config):
        loader.check_shape(parameter.name, parameter.shape)
    embedding = loader.matrix("text/token_embedding")
    if len(embedding.segments) != 1:
        raise ArtifactError("bindings.text/token_embedding", "must be one range of one object")
    return TextWeights(
        embedding=embedding,
        layers=tuple(
            load_layer(loader, config, f"text/layers/{layer}", kind == "full_attention")
            for layer, kind in enumerate(config.layer_types)
        ),
        final_norm=loader.vector("text/final_norm", 1.0),
        head=loader.matrix("text/output_head"),
    )


def check_geometry(config: TextConfig) -> None:
    """Refuse dimensions that whole vectors cannot cover."""
    sizes: dict[str, tuple[int, int]] = {"hidden_size": (config.hidden, 64)}
    if config.attention is not None:
        sizes["head_dim"] = (config.attention.head_dim, 64)
    if config.gdn is not None:
        sizes["linear_key_head_dim"] = (config.gdn.key_dim, 16)
        sizes["linear_value_head_dim"] = (config.gdn.value_dim, 32)
    for member, (value, step) in sizes.items():
        if value % step:
            raise ArtifactError(
                f"components.text.config.{member}",
                f"{value} is no multiple of {step}, which the fast engine needs; use --engine reference",
            )


def load_layer(loader: WeightLoader, config: TextConfig, prefix: str, attention: bool) -> LayerWeights:
    """One decoder layer below ``prefix``."""
    mlp = _gated(loader, f"{prefix}/mlp") if config.moe is None else None
    return LayerWeights(
        input_norm=loader.vector(f"{prefix}/input_norm", 1.0),
        post_attention_norm=loader.vector(f"{prefix}/post_attention_norm", 1.0),
        attention=_attention(loader, f"{prefix}/attention") if attention else None,
        gdn=None if attention else _gdn(loader, f"{prefix}/gdn"),
        mlp=mlp,
        experts=None if config.moe is None else _experts(loader, f"{prefix}/moe", config.moe.experts),
    )


def _attention(loader: WeightLoader, prefix: str) -> AttentionWeights:
    return AttentionWeights(
        **_matrices(loader, prefix, "query", "gate", "key", "value", "output"),
        query_norm=loader.vector(f"{prefix}/query_norm", 1.0),
        key_norm=loader.vector(f"{prefix}/key_norm", 1.0),
    )


def _gdn(loader: WeightLoader, prefix: str) -> GdnWeights:
    return GdnWeights(
        **_matrices(loader, prefix, "query", "key", "value", "z", "a_projection", "b_projection", "output"),
        a_log=loader.vector(f"{prefix}/a_log"),
        dt_bias=loader.vector(f"{prefix}/dt_bias"),
        convolution=loader.vector(f"{prefix}/convolution"),
        norm=loader.vector(f"{prefix}/norm"),
    )


def _experts(loader: WeightLoader, prefix: str, experts: int) -> ExpertWeights:
    return ExpertWeights(
        **_matrices(loader, prefix, "router", "shared_score"),
        shared=_gated(loader, f"{prefix}/shared"),
        routed=tuple(_gated(loader, f"{prefix}/experts/{expert}") for expert in range(experts)),
    )


def _gated(loader: WeightLoader, prefix: str) -> GatedMatrices:
    return GatedMatrices(**_matrices(loader, prefix, "gate", "up", "down"))


def _matrices(loader: WeightLoader, prefix: str, *names: str) -> dict[str, Any]:
    return {name: loader.matrix(f"{prefix}/{name}") for name in names}
