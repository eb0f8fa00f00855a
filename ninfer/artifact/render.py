"""``Directory`` → the plain JSON value of the file, in our member order. The inverse of ``schema``."""

from __future__ import annotations

from typing import Any

from ninfer.artifact.directory import Binding, Component, Directory, ResourceObject, TensorObject, Use


def to_json(directory: Directory) -> dict[str, Any]:
    """The directory as plain values; optional members that are empty are left out."""
    root: dict[str, Any] = {
        "components": {name: _component(row) for name, row in directory.components.items()},
        "objects": [_object(row) for row in directory.objects.values()],
        "bindings": {name: _binding(row) for name, row in directory.bindings.items()},
        "uses": [_use(row) for row in directory.uses],
        "files": [{"path": file.path, "payload_bytes": file.payload_bytes} for file in directory.files],
    }
    if directory.metadata:
        root["metadata"] = dict(directory.metadata)
    if directory.provenance:
        root["provenance"] = dict(directory.provenance)
    return root


def _component(component: Component) -> dict[str, Any]:
    row: dict[str, Any] = {"config": dict(component.config)}
    if component.target is not None:
        row["target"] = component.target
    if component.resources:
        row["resources"] = dict(component.resources)
    if component.proposal is not None:
        row["proposal"] = {"domain": component.proposal.domain}
        if component.proposal.rows is not None:
            row["proposal"]["rows"] = component.proposal.rows
    return row


def _object(found: TensorObject | ResourceObject) -> dict[str, Any]:
    if isinstance(found, ResourceObject):
        kind = {"kind": "resource", "encoding": found.encoding}
        return {"id": found.id, **kind, "offset": found.offset, "bytes": found.bytes}
    return {
        "id": found.id,
        "kind": "tensor",
        "shape": list(found.shape),
        "format": found.format,
        "layout": found.layout,
        "offset": found.offset,
        "bytes": found.bytes,
    }


def _binding(binding: Binding) -> dict[str, Any]:
    if binding.object is not None:
        return {"object": binding.object}
    return {"parts": [{"object": part.object, "range": [part.begin, part.end]} for part in binding.parts]}


def _use(use: Use) -> dict[str, Any]:
    row: dict[str, Any] = {"parameter": use.parameter, "input": use.input}
    if use.activation_policy is not None:
        row["activation_policy"] = use.activation_policy
    if use.auxiliaries:
        row["auxiliaries"] = {role: _binding(binding) for role, binding in use.auxiliaries.items()}
    return row
