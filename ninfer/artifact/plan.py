"""What a new artifact will hold, and where every byte of it will lie.

Owns the placement rules of a writer: resources first, then tensors in the given order, aligned; directory
text padded to the payload; the split over files. Nothing is written here.
Source: spec/artifact.yaml#container.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ninfer.artifact import json_text, layouts, render, schema
from ninfer.artifact.contract import align_up, container, encodings
from ninfer.artifact.directory import (
    Binding,
    Component,
    Directory,
    FileEntry,
    ResourceObject,
    Shape,
    TensorObject,
    Use,
)
from ninfer.artifact.layouts import Geometry
from ninfer.errors import ArtifactError

_RESOURCE_ENCODING = "raw_bytes_v1"


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor to come: its id, logical shape and format; the layout is the format's own unless given."""

    id: str
    shape: Shape
    format: str
    layout: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedResource:
    """A resource with its bytes."""

    id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class ArtifactPlan:
    """Everything the directory will say, before offsets are known.

    ``tensors`` stand in emission order: weights, then auxiliaries.
    """

    components: Mapping[str, Component]
    resources: Sequence[PlannedResource]
    tensors: Sequence[PlannedTensor]
    bindings: Mapping[str, Binding]
    uses: Sequence[Use] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """A plan with every offset: the directory, its padded text, and the geometry of each tensor."""

    directory: Directory
    text: bytes
    payload_start: int
    geometries: Mapping[str, Geometry]


def place(plan: ArtifactPlan, entry_name: str, max_file_bytes: int) -> Placement:
    """Lay out ``plan`` for an entry file called ``entry_name``, no file larger than ``max_file_bytes``.

    Errors: ``ArtifactError`` naming the object or member for anything the reader would refuse, and
    ``max_file_bytes`` when a file of that size cannot hold a header and a payload page.
    """
    geometries = {
        tensor.id: layouts.geometry(
            tensor.format, _layout(tensor), tuple(tensor.shape), f"object {tensor.id!r}"
        )
        for tensor in plan.tensors
    }
    objects = _objects(plan, geometries)
    payload_bytes = max((found.offset + found.bytes for found in objects), default=0)
    draft = Directory(
        components=plan.components,
        objects={found.id: found for found in objects},
        bindings=plan.bindings,
        uses=tuple(plan.uses),
        files=(FileEntry(None, max(payload_bytes, 1)),),
        metadata=plan.metadata,
        provenance=plan.provenance,
    )
    if len(draft.objects) < len(objects):
        raise ArtifactError("objects", "an object id stands twice in the plan")
    text = _split(draft, payload_bytes, entry_name, max_file_bytes)
    checked = schema.build(json_text.parse(text), entry_name)
    return Placement(checked, text, container().header_bytes + len(text), geometries)


def _layout(tensor: PlannedTensor) -> str:
    return (
        tensor.layout
        if tensor.layout is not None
        else layouts.default_layout(tensor.format, f"object {tensor.id!r}")
    )


def _objects(plan: ArtifactPlan, geometries: Mapping[str, Geometry]) -> list[TensorObject | ResourceObject]:
    objects: list[TensorObject | ResourceObject] = []
    end = 0
    for resource in plan.resources:
        offset = align_up(end, encodings()[_RESOURCE_ENCODING])
        objects.append(ResourceObject(resource.id, _RESOURCE_ENCODING, offset, len(resource.data)))
        end = offset + len(resource.data)
    for tensor in plan.tensors:
        found = geometries[tensor.id]
        offset = align_up(end, found.layout.object_alignment)
        objects.append(
            TensorObject(tensor.id, found.shape, tensor.format, found.layout.name, offset, found.bytes)
        )
        end = offset + found.bytes
    return objects


def _split(draft: Directory, payload_bytes: int, entry_name: str, max_file_bytes: int) -> bytes:
    """The padded text, files table included. The table's length depends on the text's and the other way
    round, so the room for the text grows until it fits.
    """
    constants = container()
    room = 0
    directory = draft
    while True:
        text = json_text.render(render.to_json(directory))
        if len(text) <= room:
            return text.ljust(room)
        room = (
            align_up(constants.header_bytes + len(text), constants.payload_alignment) - constants.header_bytes
        )
        files = _files(constants.header_bytes + room, payload_bytes, entry_name, max_file_bytes)
        directory = replace(draft, files=files)


def _files(payload_start: int, payload_bytes: int, entry_name: str, cap: int) -> tuple[FileEntry, ...]:
    constants = container()
    if payload_start + payload_bytes <= cap:
        return (FileEntry(None, payload_bytes),)
    multiple = constants.file_capacity_multiple
    first = (cap - payload_start) // multiple * multiple
    rest = (cap - constants.payload_alignment) // multiple * multiple
    if first <= 0 or rest <= 0:
        raise ArtifactError(
            "max_file_bytes", f"{cap} leaves no room behind a header of {payload_start} bytes"
        )
    files = [FileEntry(None, first)]
    left = payload_bytes - first
    while left > 0:
        name = constants.part_name.format(entry=entry_name, index=len(files))
        files.append(FileEntry(name, min(rest, left)))
        left -= rest
    return tuple(files)
