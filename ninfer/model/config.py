"""The configuration of a loaded model, checked once and frozen.

Owns ``TextConfig`` and ``MtpConfig``: closed member sets (``spec/models/qwen3_5.yaml``), their consistency
rules and the dimensions derived from them. Reads plain dicts; knows nothing of files or tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ninfer import spec
from ninfer.errors import ArtifactError

LayerType = Literal["full_attention", "linear_attention"]
FeedForward = Literal["dense", "moe"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: base, rotated share of the head, and pairs per position axis (T, H, W)."""

    theta: float
    partial_rotary_factor: float
    mrope_section: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Gated full attention: head counts, head dimension and rotary embedding."""

    query_heads: int
    kv_heads: int
    head_dim: int
    rope: RopeConfig

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.rope.partial_rotary_factor)


@dataclass(frozen=True, slots=True)
class GdnConfig:
    """Gated DeltaNet: key and value heads, their dimensions, and the causal convolution's taps."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    taps: int

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Mixture of experts: routed and shared widths, experts in all and per token."""

    experts: int
    experts_per_token: int
    expert_mlp: int
    shared_mlp: int


@dataclass(frozen=True, slots=True)
class TextConfig:
    """A text backbone. ``mlp`` is set for dense models, ``moe`` for the others; never both."""

    architecture: str
    hidden: int
    vocab: int
    layer_types: tuple[LayerType, ...]
    max_positions: int
    tied: bool
    rms_eps: float
    attention: AttentionConfig | None
    gdn: GdnConfig | None
    mlp: int | None
    moe: MoeConfig | None

    @property
    def layers(self) -> int:
        return len(self.layer_types)

    @property
    def feed_forward(self) -> FeedForward:
        return "dense" if self.moe is None else "moe"

    def dimensions(self) -> dict[str, int]:
        """The dimension names of ``spec/models`` with this model's values."""
        sizes = {"one": 1, "hidden": self.hidden, "twice_hidden": 2 * self.hidden, "vocab": self.vocab}
        if self.attention is not None:
            sizes |= {
                "head_dim": self.attention.head_dim,
                "query_rows": self.attention.query_heads * self.attention.head_dim,
                "kv_rows": self.attention.kv_heads * self.attention.head_dim,
            }
        if self.gdn is not None:
            sizes |= {
                "gdn_key_rows": self.gdn.key_heads * self.gdn.key_dim,
                "gdn_value_rows": self.gdn.value_heads * self.gdn.value_dim,
                "gdn_value_heads": self.gdn.value_heads,
                "gdn_value_dim": self.gdn.value_dim,
                "gdn_taps": self.gdn.taps,
                "gdn_channels": self.gdn.channels,
            }
        if self.mlp is not None:
            sizes["mlp"] = self.mlp
        if self.moe is not None:
            sizes |= {
                "experts": self.moe.experts,
                "expert_mlp": self.moe.expert_mlp,
                "shared_mlp": self.moe.shared_mlp,
            }
        return sizes


def parse_text_config(config: Mapping[str, Any]) -> TextConfig:
    """Check ``components.text.config`` of an artifact.

    Errors: ``ArtifactError`` naming ``components.text.config`` and the member, for a missing, unknown or
    inconsistent value. Source: ``spec/models/qwen3_5.yaml``.
    """
    read = _Reader("components.text.config", config)
    tables = spec.document("models/qwen3_5")
    pair = (read.architecture(), read.string("model_type"))
    feed_forward = next(
        (
            row["feed_forward"]
            for row in tables["architectures"]["text"]
            if (row["architecture"], row["model_type"]) == pair
        ),
        None,
    )
    if feed_forward is None:
        raise read.error(
            "architectures", f"{pair[0]} with model_type {pair[1]} is not a known text architecture"
        )
    layer_types = read.layer_types()
    if read.integer("num_hidden_layers") != len(layer_types):
        raise read.error("layer_types", "its length must equal num_hidden_layers")
    members = tables["config"]["text"]
    allowed = set(members["required"]) | set(members[feed_forward])
    # Attention members are also what an MTP head is built from, so they may stand without such a layer.
    has_attention = "full_attention" in layer_types or "num_attention_heads" in config
    has_gdn = "linear_attention" in layer_types
    if has_attention:
        allowed |= set(members["attention"])
    if has_gdn:
        allowed |= set(members["linear_attention"])
    read.only(allowed)
    return TextConfig(
        architecture=pair[0],
        hidden=read.integer("hidden_size"),
        vocab=read.integer("vocab_size"),
        layer_types=layer_types,
        max_positions=read.integer("max_position_embeddings"),
        tied=read.boolean("tie_word_embeddings"),
        rms_eps=read.number("rms_norm_eps"),
        attention=_attention(read) if has_attention else None,
        gdn=_gdn(read) if has_gdn else None,
        mlp=read.integer("intermediate_size") if feed_forward == "dense" else None,
        moe=_moe(read) if feed_forward == "moe" else None,
    )


def check_mtp_config(config: Mapping[str, Any], text: TextConfig) -> None:
    """Check ``components.mtp.config`` against the text model it drafts for.

    Errors: ``ArtifactError`` naming the member.
    """
    read = _Reader("components.mtp.config", config)
    read.only({"architectures"})
    rows = spec.document("models/qwen3_5")["architectures"]["mtp"]
    kinds = {row["architecture"]: row["feed_forward"] for row in rows}
    architecture = read.architecture()
    if kinds.get(architecture) != text.feed_forward:
        raise read.error("architectures", f"{architecture} does not match a {text.feed_forward} text model")
    if text.attention is None:
        raise read.error("architectures", "an MTP head needs the text config's attention members")


def _attention(read: _Reader) -> AttentionConfig:
    rope = read.child("rope_parameters")
    rope.only(set(spec.document("models/qwen3_5")["config"]["text"]["rope_parameters"]))
    section = rope.value("mrope_section")
    if not (isinstance(section, list) and len(section) == 3 and all(_is_count(n) for n in section)):
        raise rope.error("mrope_section", "must be three non-negative integers")
    config = AttentionConfig(
        query_heads=read.integer("num_attention_heads"),
        kv_heads=read.integer("num_key_value_heads"),
        head_dim=read.integer("head_dim"),
        rope=RopeConfig(
            theta=rope.number("rope_theta"),
            partial_rotary_factor=rope.number("partial_rotary_factor"),
            mrope_section=(section[0], section[1], section[2]),
        ),
    )
    if config.query_heads % config.kv_heads:
        raise read.error("num_attention_heads", "must be a multiple of num_key_value_heads")
    if config.rotary_dim % 2 or not 0 < config.rotary_dim <= config.head_dim:
        raise rope.error("partial_rotary_factor", "must rotate an even, positive part of the head")
    if sum(section) != config.rotary_dim // 2:
        raise rope.error("mrope_section", "must sum to half the rotary dimension")
    axes = [rotary_axis(pair, config.rope.mrope_section) for pair in range(config.rotary_dim // 2)]
    if [axes.count(axis) for axis in range(3)] != list(section):
        raise rope.error("mrope_section", "the interleaved axes do not fill their sections")
    return config


def rotary_axis(pair: int, section: tuple[int, int, int]) -> int:
    """The position axis (0 T, 1 H, 2 W) that rotates frequency ``pair`` in interleaved MRoPE."""
    if pair % 3 == 1 and pair < 3 * section[1]:
        return 1
    if pair % 3 == 2 and pair < 3 * section[2]:
        return 2
    return 0


def _gdn(read: _Reader) -> GdnConfig:
    config = GdnConfig(
        key_heads=read.integer("linear_num_key_heads"),
        key_dim=read.integer("linear_key_head_dim"),
        value_heads=read.integer("linear_num_value_heads"),
        value_dim=read.integer("linear_value_head_dim"),
        taps=read.integer("linear_conv_kernel_dim"),
    )
    if config.value_heads % config.key_heads:
        raise read.error("linear_num_value_heads", "must be a multiple of linear_num_key_heads")
    return config


def _moe(read: _Reader) -> MoeConfig:
    config = MoeConfig(
        experts=read.integer("num_experts"),
        experts_per_token=read.integer("num_experts_per_tok"),
        expert_mlp=read.integer("moe_intermediate_size"),
        shared_mlp=read.integer("shared_expert_intermediate_size"),
    )
    if config.experts_per_token > config.experts:
        raise read.error("num_experts_per_tok", "must not exceed num_experts")
    return config


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class _Reader:
    """Typed access to one config object; every error names the member."""

    def __init__(self, where: str, members: Mapping[str, Any]) -> None:
        self._where = where
        self._members = members

    def error(self, member: str, message: str) -> ArtifactError:
        return ArtifactError(f"{self._where}.{member}", message)

    def only(self, allowed: set[str]) -> None:
        for member in self._members:
            if member not in allowed:
                raise self.error(member, "unknown member")

    def value(self, member: str) -> Any:
        if member not in self._members:
            raise self.error(member, "missing")
        return self._members[member]

    def integer(self, member: str) -> int:
        value = self.value(member)
        if not _is_count(value) or value == 0:
            raise self.error(member, "must be a positive integer")
        return int(value)

    def number(self, member: str) -> float:
        value = self.value(member)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(member, "must be a positive number")
        # An integer literal may exceed the largest float; such a value is as wrong as an infinite one.
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or number <= 0:
            raise self.error(member, "must be a positive finite number")
        return number

    def boolean(self, member: str) -> bool:
        value = self.value(member)
        if not isinstance(value, bool):
            raise self.error(member, "must be true or false")
        return value

    def string(self, member: str) -> str:
        value = self.value(member)
        if not isinstance(value, str):
            raise self.error(member, "must be a string")
        return value

    def architecture(self) -> str:
        value = self.value("architectures")
        if not (isinstance(value, list) and len(value) == 1 and isinstance(value[0], str)):
            raise self.error("architectures", "must be a list of one string")
        return value[0]

    def layer_types(self) -> tuple[LayerType, ...]:
        value = self.value("layer_types")
        if not isinstance(value, list) or not value:
            raise self.error("layer_types", "must be a non-empty list")
        for index, item in enumerate(value):
            if item not in ("full_attention", "linear_attention"):
                raise self.error(f"layer_types[{index}]", "must be full_attention or linear_attention")
        return tuple(value)

    def child(self, member: str) -> _Reader:
        value = self.value(member)
        if not isinstance(value, Mapping):
            raise self.error(member, "must be an object")
        return _Reader(f"{self._where}.{member}", value)
