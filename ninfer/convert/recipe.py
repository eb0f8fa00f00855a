"""Recipes as data: which format a recipe gives a logical parameter.

Owns the reading of ``spec/convert.yaml``'s recipe tables; knows nothing of files or of how formats are
encoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ninfer import spec
from ninfer.errors import CheckpointError
from ninfer.model.config import TextConfig
from ninfer.model.parameters import Parameter

_LAYER = re.compile(r"((?:text|mtp)/layers/(\d+)/)(.+)")
_EXPERT = re.compile(r"moe/experts/(\d+)/(\w+)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a parameter stands: its layer's prefix and index, its name inside, its expert."""

    prefix: str
    layer: int | None
    leaf: str
    expert: int

    @property
    def is_mtp(self) -> bool:
        return self.prefix.startswith("mtp/") or self.leaf.startswith("mtp/")


def place_of(name: str) -> Place:
    """The place of a logical parameter; routed experts share one leaf, ``moe/experts/{e}/gate``."""
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return Place("", None, name, 0)
    prefix, index, leaf = layer.groups()
    expert = _EXPERT.fullmatch(leaf)
    if expert is None:
        return Place(prefix, int(index), leaf, 0)
    return Place(prefix, int(index), f"moe/experts/{{e}}/{expert[2]}", int(expert[1]))


@dataclass(frozen=True, slots=True)
class Recipe:
    """One recipe for one architecture family. ``groupwise`` and ``late`` are that family's published
    tables.
    """

    name: str
    quantised: Mapping[str, str]
    late: Mapping[str, str]
    late_layers: frozenset[int]
    vocabulary: str | None
    mtp: str | None

    def format_of(self, parameter: Parameter) -> str:
        """The tensor format of one parameter. Source: ``spec/convert.yaml``, order of precedence there."""
        if parameter.dtype is not None:
            return parameter.dtype
        tables, place = spec.document("convert"), place_of(parameter.name)
        if place.leaf not in self.quantised:
            return str(tables["unquantised"])
        if place.is_mtp and self.mtp is not None:
            return self.mtp
        if place.leaf in tables["vocabulary"] and self.vocabulary is not None:
            return self.vocabulary
        if place.layer in self.late_layers and place.leaf in self.late:
            return self.late[place.leaf]
        return self.quantised[place.leaf]


def recipe_names() -> tuple[str, ...]:
    """The names that ``--recipe`` accepts."""
    return tuple(spec.document("convert")["recipes"])


def load_recipe(name: str, config: TextConfig) -> Recipe:
    """The recipe ``name`` for a model. Errors: ``CheckpointError`` when there is no such recipe."""
    tables = spec.document("convert")
    row = tables["recipes"].get(name)
    if row is None:
        raise CheckpointError(f"recipe {name!r} is not one of {', '.join(recipe_names())}")
    groupwise: dict[str, str] = tables["groupwise"][config.feed_forward]
    late = tables["late_layers"].get(config.feed_forward) if row.get("tables") else None
    if row.get("tables"):
        quantised = groupwise
    else:
        quantised = dict.fromkeys(groupwise, row["every"]) if "every" in row else {}
    return Recipe(
        name=name,
        quantised=quantised,
        late=late["formats"] if late else {},
        late_layers=frozenset(config.layers - distance for distance in late["from_end"])
        if late
        else frozenset(),
        vocabulary=row.get("vocabulary"),
        mtp=row.get("mtp"),
    )
