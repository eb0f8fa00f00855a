"""``config.json`` → the closed architecture config of an artifact.

Owns where each member is looked for (nested under ``text_config`` or flat, rotary members in
``rope_parameters`` or in their older places) and refuses values the forward pass does not implement.
Nothing is defaulted: a member that is not there is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ninfer import spec
from ninfer.errors import ArtifactError, CheckpointError
from ninfer.model.config import TextConfig, parse_text_config


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a checkpoint is: the artifact's text config as written and as parsed, and the MTP config."""

    text_config: dict[str, Any]
    text: TextConfig
    mtp_config: dict[str, Any]
    declares_mtp: bool


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """The architecture of a checkpoint from its ``config.json``.

    Errors: ``CheckpointError`` naming ``config.json`` and the member that is missing, wrong or not
    implemented.
    """
    reader = _Members(config)
    reader.refuse_unsupported()
    written = _text_config(reader)
    try:
        text = parse_text_config(written)
    except ArtifactError as error:
        raise CheckpointError(f"config.json: {error}") from error
    rows = spec.document("models/qwen3_5")["architectures"]["mtp"]
    mtp = next(row["architecture"] for row in rows if row["feed_forward"] == text.feed_forward)
    declared = bool(reader.text.get("mtp_num_hidden_layers", 0))
    return Architecture(written, text, {"architectures": [mtp]}, declared)


def _text_config(reader: _Members) -> dict[str, Any]:
    tables = spec.document("models/qwen3_5")
    row = _architecture_row(reader)
    layer_types = _layer_types(reader)
    members = tables["config"]["text"]
    derived = {
        "architectures": [row["architecture"]],
        "layer_types": layer_types,
        "tie_word_embeddings": reader.outermost("tie_word_embeddings"),
        "rope_parameters": _rope(reader, members["rope_parameters"]),
    }
    names = [*members["required"], *members["attention"], *members[row["feed_forward"]]]
    if "linear_attention" in layer_types:
        names += members["linear_attention"]
    written = {name: derived[name] if name in derived else reader.text_member(name) for name in names}
    return {name: _stored(value) for name, value in written.items()}


def _architecture_row(reader: _Members) -> dict[str, str]:
    model_type = reader.text_member("model_type")
    rows: list[dict[str, str]] = spec.document("models/qwen3_5")["architectures"]["text"]
    for row in rows:
        if row["model_type"] == model_type:
            return row
    known = " or ".join(row["model_type"] for row in rows)
    raise CheckpointError(f"config.json: model_type {model_type!r} is not {known}")


def _layer_types(reader: _Members) -> list[str]:
    explicit = reader.text.get("layer_types")
    if explicit is not None:
        return explicit  # type: ignore[no-any-return]  # parse_text_config checks its shape and items
    interval, layers = reader.count("full_attention_interval"), reader.count("num_hidden_layers")
    return ["linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(layers)]


def _rope(reader: _Members, members: list[str]) -> dict[str, Any]:
    """Rotary members: ``rope_parameters``, else ``rope_scaling``; a member absent there may stand flat
    (older files).
    """
    nested = reader.text.get("rope_parameters", reader.text.get("rope_scaling"))
    nested = {} if nested is None else nested
    if not isinstance(nested, Mapping):
        raise CheckpointError("config.json: rope_parameters must be an object")
    _check_fixed(nested, "fixed_rope", "rope_parameters.")
    found = {**{name: reader.text[name] for name in members if name in reader.text}, **nested}
    for name in members:
        if name not in found:
            raise CheckpointError(f"config.json: rope_parameters.{name} is missing")
        if name in nested and reader.text.get(name, nested[name]) != nested[name]:
            raise CheckpointError(f"config.json: {name} differs from rope_parameters.{name}")
    return {name: _stored(found[name]) for name in members}


def _check_fixed(values: Mapping[str, Any], table: str, prefix: str) -> None:
    for name, allowed in spec.document("convert")["config"][table].items():
        if name in values and values[name] is not None and values[name] not in allowed:
            raise CheckpointError(
                f"config.json: {prefix}{name} is {values[name]!r}; only {allowed[-1]!r} is implemented"
            )


def _stored(value: Any) -> Any:
    """Real numbers are stored as their float32 rounding, as the published artifacts do."""
    return float(np.float32(value)) if isinstance(value, float) else value


class _Members:
    """``config.json`` with its text members found: nested under ``text_config``, or flat."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        nested = config.get("text_config")
        if nested is not None and not isinstance(nested, Mapping):
            raise CheckpointError("config.json: text_config must be an object")
        self._outer = config
        self.text: Mapping[str, Any] = config if nested is None else nested
        self._prefix = "" if nested is None else "text_config."

    def text_member(self, name: str) -> Any:
        if self.text.get(name) is None:
            raise CheckpointError(f"config.json: {self._prefix}{name} is missing")
        return self.text[name]

    def count(self, name: str) -> int:
        value = self.text_member(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(f"config.json: {self._prefix}{name} must be a positive integer")
        return value

    def outermost(self, name: str) -> Any:
        """A member that the whole model's config decides; the text config's is a class default under it."""
        return self._outer[name] if self._outer.get(name) is not None else self.text_member(name)

    def refuse_unsupported(self) -> None:
        for name in spec.document("convert")["config"]["refused"]:
            if self._outer.get(name) is not None or self.text.get(name) is not None:
                raise CheckpointError(
                    f"config.json: {name} is set; only unquantised checkpoints can be converted so far"
                )
        _check_fixed(self.text, "fixed", self._prefix)
