"""A text model's weights on a device, by what reads them together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ninfer.errors import ArtifactError
from ninfer.fast.ops.gdn.gpu import TAPS
from ninfer.fast.ops.linear.packing import Packed
from ninfer.fast.ops.moe.gpu import Experts
from ninfer.fast.program.gpu.weights import Named, Projection, gated, project, stack
from ninfer.model.config import TextConfig
from ninfer.model.parameters import text_parameters


class Source(Protocol):
    """Where matrices and vectors come from: an artifact, or random numbers."""

    def matrix(self, name: str) -> Named:
        """Format and natural planes."""
        ...

    def vector(self, name: str, offset: float = 0.0) -> Tensor:
        """Float32 plus ``offset``."""
        ...

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse another shape."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPart:
    """Query, gate, key and value side by side; norms hold 1 + w."""

    inputs: Projection
    output: Packed
    query_norm: Tensor
    key_norm: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class GdnPart:
    """[Q | K | V], z side by side, a and b with them where they have the same format, else apart."""

    inputs: Projection
    gates: Projection | None
    output: Packed
    a_log: Tensor
    dt_bias: Tensor
    convolution: Tensor
    norm: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class GatedPart:
    """A SwiGLU feed-forward, gate and up interleaved."""

    inputs: Packed
    output: Packed


@dataclass(frozen=True, slots=True, eq=False)
class MixturePart:
    """Router logits and the shared expert's score side by side; the shared expert; the routed ones."""

    router: Projection
    shared: GatedPart
    inputs: Experts
    outputs: Experts


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One decoder layer: exactly one mixer and one feed-forward are set."""

    input_norm: Tensor
    post_norm: Tensor
    attention: AttentionPart | None
    gdn: GdnPart | None
    dense: GatedPart | None
    mixture: MixturePart | None


@dataclass(frozen=True, slots=True, eq=False)
class TextModel:
    """A text backbone on one device; a tied head is the embedding's own matrix."""

    embedding: Packed
    layers: tuple[Layer, ...]
    final_norm: Tensor
    head: Packed

    @property
    def bytes(self) -> int:
        """Memory of every matrix and vector."""
        return memory_of(self)


def memory_of(*parts: object) -> int:
    """Bytes of every matrix and vector in ``parts``, shared ones once."""
    seen: dict[int, int] = {}
    _collect(parts, seen)
    return sum(seen.values())


def _collect(value: object, seen: dict[int, int]) -> None:
    if isinstance(value, Tensor):
        seen[value.data_ptr()] = value.numel() * value.element_size()
    elif isinstance(value, tuple):
        for item in value:
            _collect(item, seen)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            _collect(getattr(value, name), seen)


def check_geometry(config: TextConfig) -> None:
    """Refuse dimensions that the kernels' tiles cannot cover. Errors: ``ArtifactError``."""
    rules: list[tuple[str, int, Callable[[int], bool], str]] = []
    if config.attention is not None:
        heads = config.attention
        rules.append(("head_dim", heads.head_dim, lambda n: n in (64, 128, 256), "64, 128 or 256"))
        group = heads.query_heads // heads.kv_heads
        rules.append(("num_attention_heads", group, lambda n: n <= 16, "at most 16 for a key head"))
    if config.gdn is not None:
        power = "a power of two from 16 to 256"
        for member, size in (
            ("linear_key_head_dim", config.gdn.key_dim),
            ("linear_value_head_dim", config.gdn.value_dim),
        ):
            rules.append((member, size, lambda n: 16 <= n <= 256 and n & (n - 1) == 0, power))
        rules.append(("linear_conv_kernel_dim", config.gdn.taps, lambda n: n == TAPS, str(TAPS)))
    for member, value, holds, wanted in rules:
        if not holds(value):
            raise ArtifactError(
                f"components.text.config.{member}",
                f"{value} where the GPU engine needs {wanted}; use --engine reference",
            )


def load_text_model(source: Source, config: TextConfig) -> TextModel:
    """Every parameter of the text model. Errors: ``ArtifactError`` naming what no kernel computes."""
    check_geometry(config)
    for parameter in text_parameters(config):
        source.check_shape(parameter.name, parameter.shape)
    embedding = project([("embedding", source.matrix("text/token_embedding"))]).single
    head = embedding if config.tied else project([("head", source.matrix("text/output_head"))]).single
    layers = tuple(
        load_layer(source, config, f"text/layers/{layer}", kind == "full_attention")
        for layer, kind in enumerate(config.layer_types)
    )
    return TextModel(embedding, layers, source.vector("text/final_norm", 1.0), head)


def load_layer(source: Source, config: TextConfig, prefix: str, attention: bool) -> Layer:
    """One decoder layer below ``prefix``."""
    return Layer(
        input_norm=source.vector(f"{prefix}/input_norm", 1.0),
        post_norm=source.vector(f"{prefix}/post_attention_norm", 1.0),
        attention=_attention(source, f"{prefix}/attention") if attention else None,
        gdn=None if attention else _gdn(source, f"{prefix}/gdn"),
        dense=_gated(source, f"{prefix}/mlp") if config.moe is None else None,
        mixture=None if config.moe is None else _mixture(source, config, f"{prefix}/moe"),
    )


def _named(source: Source, prefix: str, *names: str) -> list[tuple[str, Named]]:
    return [(name, source.matrix(f"{prefix}/{name}")) for name in names]


def _attention(source: Source, prefix: str) -> AttentionPart:
    return AttentionPart(
        project(_named(source, prefix, "query", "gate", "key", "value")),
        project(_named(source, prefix, "output")).single,
        source.vector(f"{prefix}/query_norm", 1.0),
        source.vector(f"{prefix}/key_norm", 1.0),
    )


def _gdn(source: Source, prefix: str) -> GdnPart:
    wide = _named(source, prefix, "query", "key", "value", "z")
    small = _named(source, prefix, "a_projection", "b_projection")
    together = len({number for _, (number, _) in wide + small}) == 1
    return GdnPart(
        inputs=project(wide + small if together else wide),
        gates=None if together else project(small),
        output=project(_named(source, prefix, "output")).single,
        a_log=source.vector(f"{prefix}/a_log"),
        dt_bias=source.vector(f"{prefix}/dt_bias"),
        convolution=source.vector(f"{prefix}/convolution"),
        norm=source.vector(f"{prefix}/norm"),
    )


def _gated(source: Source, prefix: str) -> GatedPart:
    inputs = gated(prefix, source.matrix(f"{prefix}/gate"), source.matrix(f"{prefix}/up"))
    return GatedPart(inputs, project(_named(source, prefix, "down")).single)


def _mixture(source: Source, config: TextConfig, prefix: str) -> MixturePart:
    moe = config.moe
    assert moe is not None

    def both(expert: int) -> Named:
        gate, up = (source.matrix(f"{prefix}/experts/{expert}/{name}") for name in ("gate", "up"))
        if gate[0] != up[0]:
            raise ArtifactError(f"{prefix}/experts/{expert}", "gate and up have different formats")
        return gate[0], [_rows_in_turn(*pair) for pair in zip(gate[1], up[1], strict=True)]

    def down(expert: int) -> Named:
        return source.matrix(f"{prefix}/experts/{expert}/down")

    return MixturePart(
        router=project(_named(source, prefix, "router", "shared_score")),
        shared=_gated(source, f"{prefix}/shared"),
        inputs=stack(prefix, 2 * moe.expert_mlp, (both(expert) for expert in range(moe.experts))),
        outputs=stack(prefix, config.hidden, (down(expert) for expert in range(moe.experts))),
    )


def _rows_in_turn(first: Tensor, second: Tensor) -> Tensor:
    import torch

    return torch.stack((first, second), 1).flatten(0, 1)
