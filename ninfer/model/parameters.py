"""The logical parameters of a model: names, shapes and uses, expanded from ``spec/models``.

Owns the list only. The converter writes bindings under these names, loaders look weights up by them; nobody
goes through object ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ninfer import spec
from ninfer.model.config import LayerType, TextConfig


@dataclass(frozen=True, slots=True)
class Parameter:
    """One logical parameter. ``uses`` are full input names; ``dtype`` is fp32 where the format is fixed."""

    name: str
    shape: tuple[int, ...]
    uses: tuple[str, ...] = ()
    dtype: str | None = None


def text_parameters(config: TextConfig) -> tuple[Parameter, ...]:
    """Every parameter of a text backbone in the order of the forward pass.

    A tied model still has ``text/output_head``: it is bound to the embedding's object.
    """
    tables, sizes = spec.document("models/qwen3_5")["parameters"], config.dimensions()
    embedding, *tail = (_parameter(row, "", sizes) for row in tables["text"])
    layers = (
        parameter
        for index, kind in enumerate(config.layer_types)
        for parameter in _layer(config, f"text/layers/{index}", kind)
    )
    return (embedding, *layers, *tail)


def mtp_parameters(config: TextConfig) -> tuple[Parameter, ...]:
    """Every parameter of the MTP head of ``config``'s model."""
    tables, sizes = spec.document("models/qwen3_5")["parameters"], config.dimensions()
    stem = (_parameter(row, "", sizes) for row in tables["mtp"])
    return (*stem, *_layer(config, "mtp/layers/0", "full_attention"))


def _layer(config: TextConfig, prefix: str, kind: LayerType) -> Iterator[Parameter]:
    tables, sizes = spec.document("models/qwen3_5")["parameters"], config.dimensions()
    for group in ("layer", kind, config.feed_forward):
        yield from (_parameter(row, prefix, sizes) for row in tables[group])
    if config.moe is not None:
        for expert in range(config.moe.experts):
            for row in tables["expert"]:
                yield _expert(row, prefix, expert, sizes)


def _parameter(row: dict[str, Any], prefix: str, sizes: dict[str, int]) -> Parameter:
    path = f"{prefix}/" if prefix else ""
    return Parameter(
        name=path + row["name"],
        shape=tuple(sizes[dimension] for dimension in row["shape"]),
        uses=tuple(path + use for use in row.get("uses", ())),
        dtype=row.get("dtype"),
    )


def _expert(row: dict[str, Any], layer: str, expert: int, sizes: dict[str, int]) -> Parameter:
    prefix = f"{layer}/moe/experts/{expert}"
    # Gate and up of all experts read the layer's own input; only the product is the expert's.
    uses = tuple(f"{layer}/{use}" if use == "ffn_input" else f"{prefix}/{use}" for use in row["uses"])
    return Parameter(f"{prefix}/{row['name']}", tuple(sizes[d] for d in row["shape"]), uses)
