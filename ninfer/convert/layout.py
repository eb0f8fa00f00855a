"""Which physical tensors an artifact holds: parents, their formats, and the logical parameters packed in
them.

Owns the grouping only, from config and recipe alone: no checkpoint is needed, so the objects of a 35B
model can be counted in a second. Knows nothing of sources or bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from math import prod

from ninfer import spec
from ninfer.convert.recipe import Place, Recipe, place_of
from ninfer.model.config import TextConfig
from ninfer.model.parameters import Parameter, mtp_parameters, text_parameters

EMBEDDING, HEAD = "text/token_embedding", "text/output_head"


@dataclass(frozen=True, slots=True)
class Parent:
    """One stored tensor. ``members`` follow each other in its C order; one member means it is the
    parameter.
    """

    format: str
    shape: tuple[int, ...]
    members: tuple[Parameter, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)


def stored_parameters(config: TextConfig, with_mtp: bool) -> tuple[Parameter, ...]:
    """The logical parameters that have bytes of their own: a tied head has none."""
    text = (row for row in text_parameters(config) if not (config.tied and row.name == HEAD))
    return (*text, *(mtp_parameters(config) if with_mtp else ()))


def plan_parents(config: TextConfig, recipe: Recipe, with_mtp: bool) -> tuple[Parent, ...]:
    """Every stored tensor, in the order of the forward pass. Source: ``spec/convert.yaml`` ``parents``."""
    groups = spec.document("convert")["parents"][config.feed_forward]
    order = {leaf: (group, row) for group, leaves in enumerate(groups) for row, leaf in enumerate(leaves)}
    gathered: dict[tuple[str, int | str], list[tuple[Place, Parameter]]] = {}
    for parameter in stored_parameters(config, with_mtp):
        place = place_of(parameter.name)
        group = order[place.leaf][0] if place.leaf in order else place.leaf
        gathered.setdefault((place.prefix, group), []).append((place, parameter))
    return tuple(
        parent
        for rows in gathered.values()
        for parent in _parents(sorted(rows, key=lambda row: (row[0].expert, order.get(row[0].leaf))), recipe)
    )


def _parents(rows: Iterable[tuple[Place, Parameter]], recipe: Recipe) -> Iterator[Parent]:
    parameters = (parameter for _, parameter in rows)
    for form, run in groupby(parameters, key=recipe.format_of):
        members = tuple(run)
        yield Parent(form, _joined_shape(members), members)


def _joined_shape(members: tuple[Parameter, ...]) -> tuple[int, ...]:
    if len(members) == 1:
        return members[0].shape
    width = members[0].shape[1]
    return (sum(member.shape[0] for member in members), width)
