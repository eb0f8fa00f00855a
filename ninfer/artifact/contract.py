"""Typed view of ``spec/artifact.yaml``: container constants, member sets, formats and layouts.

The only reader of that document in this package; everything else asks here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ninfer import spec

FormatKind = Literal["direct", "grouped", "block_scaled", "row_scaled"]


@dataclass(frozen=True, slots=True)
class Container:
    """Framing constants and limits. Sizes in bytes."""

    version: int
    header_bytes: int
    magic_bytes: int
    artifact_id_bytes: int
    entry_magic: bytes
    part_magic: bytes
    payload_alignment: int
    file_capacity_multiple: int
    default_max_file_bytes: int
    max_directory_bytes: int
    part_name: str
    integer_max: int
    rank_max: int


@dataclass(frozen=True, slots=True)
class Members:
    """The closed member set of one directory record."""

    required: frozenset[str]
    allowed: frozenset[str]


@dataclass(frozen=True, slots=True)
class TensorFormat:
    """One numeric format; members that do not belong to its kind are 0."""

    name: str
    kind: FormatKind
    layout: str
    word_bytes: int = 0
    bits: int = 0
    group: int = 0
    code_min: int = 0
    code_max: int = 0
    encoder_max: int = 0


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """One storage layout; members that do not belong to it are 0."""

    name: str
    kinds: frozenset[str]
    object_alignment: int
    rank: tuple[int, int]
    plane_alignment: int = 1
    column_multiple: int = 0
    group_base_bytes: int = 0
    scale_bytes: int = 0
    tile_rows: int = 0
    tile_groups: int = 0
    tile_lane_rows: int = 0
    divisor_bytes: int = 0


@functools.cache
def container() -> Container:
    """Framing constants and limits."""
    row: dict[str, Any] = {**_document()["container"], **_document()["limits"]}
    row["entry_magic"] = bytes.fromhex(row["entry_magic"])
    row["part_magic"] = bytes.fromhex(row["part_magic"])
    return Container(**row)


@functools.cache
def members(record: str) -> Members:
    """The member set of ``record`` (``root``, ``tensor``, ``use``, …)."""
    row = _document()["members"][record]
    required = frozenset(row["required"])
    return Members(required, required | frozenset(row["optional"]))


@functools.cache
def formats() -> Mapping[str, TensorFormat]:
    """Every tensor format by name."""
    rows = _document()["formats"]
    return {name: TensorFormat(name=name, **row) for name, row in rows.items()}


@functools.cache
def layouts() -> Mapping[str, TensorLayout]:
    """Every tensor layout by name."""
    return {name: _layout(name, row) for name, row in _document()["layouts"].items()}


@functools.cache
def encodings() -> Mapping[str, int]:
    """Every resource encoding by name, with its object alignment."""
    return {name: row["object_alignment"] for name, row in _document()["encodings"].items()}


@functools.cache
def activation_policies() -> frozenset[str]:
    """The values of a use's ``activation_policy``."""
    return frozenset(_document()["activation_policies"])


@functools.cache
def required_components() -> tuple[str, ...]:
    """Components without which a directory is refused."""
    return tuple(_document()["components"]["required"])


@functools.cache
def known_components() -> tuple[str, ...]:
    """Components this version gives a meaning to; others may stand in a file and are never read."""
    return tuple(_document()["components"]["known"])


def companion_target() -> str:
    """The component a companion may name as its target."""
    return str(_document()["components"]["companion_target"])


def proposal_owner() -> str:
    """The component that may declare a proposal head."""
    return str(_document()["components"]["proposal_owner"])


def required_resources(component: str) -> tuple[str, ...]:
    """The resource roles a component's front end needs; empty for components without one."""
    return tuple(_document()["components"]["resources"].get(component, ()))


def object_id(kind: Literal["resource", "weight", "auxiliary"], **fields: str | int) -> str:
    """The object id our converter gives: ``resource`` takes component and role, the others an index."""
    template: str = _document()["object_ids"][kind]
    return template.format(**fields)


def align_up(value: int, alignment: int) -> int:
    """The smallest multiple of ``alignment`` not below ``value``."""
    return -(-value // alignment) * alignment


def _layout(name: str, row: dict[str, Any]) -> TensorLayout:
    rest = {key: value for key, value in row.items() if key not in ("kinds", "rank")}
    return TensorLayout(
        name=name, kinds=frozenset(row["kinds"]), rank=(row["rank"][0], row["rank"][1]), **rest
    )


def _document() -> dict[str, Any]:
    document: dict[str, Any] = spec.document("artifact")
    return document
