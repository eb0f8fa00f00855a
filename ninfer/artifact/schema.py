"""Directory JSON → ``Directory``: closed member sets, types, limits, ranges and references.

Owns every structural rule of the container that can be checked without touching the payload. What a format,
layout or encoding name means is not looked at here: that is checked when an object is used.
Errors name the JSON member. Written tight: a mixture-of-experts model has some 33,000 bindings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ninfer.artifact import contract
from ninfer.artifact.directory import (
    Binding,
    Component,
    Directory,
    FileEntry,
    Part,
    Proposal,
    ResourceObject,
    Shape,
    TensorObject,
    Use,
)
from ninfer.artifact.json_text import check_finite, shorten
from ninfer.errors import ArtifactError

_NO_AUXILIARIES: Mapping[str, Binding] = MappingProxyType({})

Objects = dict[str, TensorObject | ResourceObject]


def build(value: Any, entry_name: str) -> Directory:
    """The checked directory of the artifact whose entry file is called ``entry_name``.

    Errors: ``ArtifactError`` naming the member that is missing, unknown, of the wrong type, out of range or
    dangling.
    """
    root = _record(value, "root", "directory")
    files = _files(root["files"], entry_name)
    objects = _objects(_list(root["objects"], "objects"), sum(file.payload_bytes for file in files))
    components = _components(root["components"], objects)
    bindings = _bindings(root["bindings"], objects)
    return Directory(
        components=components,
        objects=objects,
        bindings=bindings,
        uses=_uses(_list(root["uses"], "uses", empty=True), bindings, objects),
        files=files,
        metadata=_metadata(root.get("metadata", {})),
        provenance=_open_object(root.get("provenance", {}), "provenance"),
    )


def _objects(rows: list[Any], payload_bytes: int) -> Objects:
    objects: Objects = {}
    end, before = 0, "the start"
    for index, row in enumerate(rows):
        found = _object(row, f"objects[{index}]")
        if found.id in objects:
            raise ArtifactError(f"objects[{index}].id", f"{shorten(found.id)!r} stands twice")
        if found.offset < end:
            message = (
                f"{shorten(found.id)!r} at {found.offset} overlaps or precedes {before}, which ends at {end}"
            )
            raise ArtifactError(f"objects[{index}].offset", message)
        end, before = found.offset + found.bytes, repr(shorten(found.id))
        if end > payload_bytes:
            message = f"{before} ends at {end}, the payload has {payload_bytes} bytes"
            raise ArtifactError(f"objects[{index}].bytes", message)
        objects[found.id] = found
    return objects


def _object(row: Any, where: str) -> TensorObject | ResourceObject:
    if type(row) is not dict:
        raise ArtifactError(where, "must be an object")
    kind = row.get("kind")
    if kind == "tensor":
        _members(row, "tensor", where)
        return TensorObject(
            id=_id(row["id"], f"{where}.id"),
            shape=_shape(row["shape"], f"{where}.shape"),
            format=_id(row["format"], f"{where}.format"),
            layout=_id(row["layout"], f"{where}.layout"),
            offset=_integer(row["offset"], f"{where}.offset"),
            bytes=_integer(row["bytes"], f"{where}.bytes", minimum=1),
        )
    if kind == "resource":
        _members(row, "resource", where)
        return ResourceObject(
            id=_id(row["id"], f"{where}.id"),
            encoding=_id(row["encoding"], f"{where}.encoding"),
            offset=_integer(row["offset"], f"{where}.offset"),
            bytes=_integer(row["bytes"], f"{where}.bytes", minimum=1),
        )
    raise ArtifactError(f"{where}.kind", f"{shorten(kind)!r} is neither 'tensor' nor 'resource'")


def _shape(value: Any, where: str) -> Shape:
    limits = contract.container()
    if type(value) is not list or len(value) > limits.rank_max:
        raise ArtifactError(where, f"must be a list of at most {limits.rank_max} positive integers")
    shape = tuple(_integer(extent, where, minimum=1) for extent in value)
    if math.prod(shape) > limits.integer_max:
        raise ArtifactError(where, "the element count does not fit an unsigned 64-bit integer")
    return shape


def _files(value: Any, entry_name: str) -> tuple[FileEntry, ...]:
    names = {entry_name}
    files = []
    for index, row in enumerate(_list(value, "files")):
        where = f"files[{index}]"
        record = _record(row, "file", where)
        payload_bytes = _integer(record["payload_bytes"], f"{where}.payload_bytes", minimum=1)
        path = record["path"]
        if index == 0:
            if path is not None:
                raise ArtifactError(f"{where}.path", "must be null: the first file is the entry")
        else:
            _sibling(path, f"{where}.path")
            if path in names:
                raise ArtifactError(f"{where}.path", f"{shorten(path)!r} names a file twice")
            names.add(path)
        files.append(FileEntry(path, payload_bytes))
    if sum(file.payload_bytes for file in files) > contract.container().integer_max:
        raise ArtifactError("files", "the payload does not fit an unsigned 64-bit integer")
    return tuple(files)


def _sibling(path: Any, where: str) -> None:
    if type(path) is not str or path in ("", ".", "..") or any(mark in path for mark in "/\\\0"):
        raise ArtifactError(where, f"{shorten(path)!r} is not the name of a file beside the entry")


def _components(value: Any, objects: Objects) -> dict[str, Component]:
    rows = _object_of(value, "components")
    for name in contract.required_components():
        if name not in rows:
            raise ArtifactError("components", f"{name!r} is missing")
    return {name: _component(name, row, rows, objects) for name, row in rows.items()}


def _component(name: str, row: Any, rows: Mapping[str, Any], objects: Objects) -> Component:
    where = f"components.{shorten(_id(name, 'components'))}"
    record = _record(row, "component", where)
    target = record.get("target")
    if "target" in record:
        _target(name, target, rows, f"{where}.target")
    resources = _object_of(record.get("resources", {}), f"{where}.resources")
    for role, object_id in resources.items():
        member = f"{where}.resources.{shorten(_id(role, f'{where}.resources'))}"
        if not isinstance(_lookup(objects, object_id, member), ResourceObject):
            raise ArtifactError(member, f"{shorten(object_id)!r} is a tensor, not a resource")
    return Component(
        config=_open_object(record["config"], f"{where}.config"),
        target=target,
        resources=resources,
        proposal=_proposal(name, record["proposal"], f"{where}.proposal") if "proposal" in record else None,
    )


def _target(name: str, target: Any, rows: Mapping[str, Any], where: str) -> None:
    if type(target) is not str or target not in rows:
        raise ArtifactError(where, f"{shorten(target)!r} is not a component of this artifact")
    main = contract.companion_target()
    if name in contract.known_components() and target != main:
        raise ArtifactError(where, f"must be {main!r}, not {shorten(target)!r}")


def _proposal(name: str, value: Any, where: str) -> Proposal:
    if name != contract.proposal_owner():
        raise ArtifactError(where, f"only {contract.proposal_owner()!r} may have a proposal")
    domain = _object_of(value, where).get("domain")
    if domain == "full":
        _members(value, "proposal_full", where)
        return Proposal("full")
    if domain == "indexed":
        _members(value, "proposal_indexed", where)
        return Proposal("indexed", _integer(value["rows"], f"{where}.rows", minimum=1))
    raise ArtifactError(f"{where}.domain", f"{shorten(domain)!r} is neither 'full' nor 'indexed'")


def _bindings(value: Any, objects: Objects) -> dict[str, Binding]:
    return {
        _id(name, "bindings"): _binding(row, objects, f"bindings[{shorten(name)!r}]")
        for name, row in _object_of(value, "bindings").items()
    }


def _binding(row: Any, objects: Objects, where: str) -> Binding:
    if type(row) is dict and len(row) == 1:
        if "object" in row:
            return Binding(_tensor(objects, row["object"], where).id)
        if "parts" in row:
            parts = row["parts"]
            if type(parts) is not list or not parts:
                raise ArtifactError(f"{where}.parts", "must be a list with at least one part")
            return Binding(None, tuple([_part(part, objects, where, i) for i, part in enumerate(parts)]))
    raise ArtifactError(where, "must have exactly one member, 'object' or 'parts'")


def _part(row: Any, objects: Objects, binding: str, index: int) -> Part:
    where = f"{binding}.parts[{index}]"
    if type(row) is not dict or len(row) != 2 or "object" not in row or "range" not in row:
        raise ArtifactError(where, "must have exactly the members 'object' and 'range'")
    tensor = _tensor(objects, row["object"], where)
    ends = row["range"]
    if type(ends) is not list or len(ends) != 2 or type(ends[0]) is not int or type(ends[1]) is not int:
        raise ArtifactError(f"{where}.range", "must be two integers, begin and end")
    begin, end = ends
    if not 0 <= begin < end <= tensor.elements:
        message = (
            f"[{shorten(begin)}, {shorten(end)}) is not inside {shorten(tensor.id)!r} of {tensor.elements}"
        )
        raise ArtifactError(f"{where}.range", f"{message} elements")
    return Part(tensor.id, begin, end)


def _tensor(objects: Objects, object_id: Any, where: str) -> TensorObject:
    found = _lookup(objects, object_id, f"{where}.object")
    if type(found) is not TensorObject:
        raise ArtifactError(f"{where}.object", f"{shorten(object_id)!r} is a resource, not a tensor")
    return found


def _lookup(objects: Objects, object_id: Any, where: str) -> TensorObject | ResourceObject:
    found = objects.get(object_id) if type(object_id) is str else None
    if found is None:
        raise ArtifactError(where, f"{shorten(object_id)!r} is not an object of this artifact")
    return found


def _uses(rows: list[Any], bindings: Mapping[str, Binding], objects: Objects) -> tuple[Use, ...]:
    seen: set[tuple[str, str]] = set()
    uses = []
    for index, row in enumerate(rows):
        use = _use(row, index, bindings, objects)
        pair = (use.parameter, use.input)
        if pair in seen:
            raise ArtifactError(
                f"uses[{index}]", f"{shorten(pair[0])!r} at {shorten(pair[1])!r} stands twice"
            )
        seen.add(pair)
        uses.append(use)
    return tuple(uses)


def _use(row: Any, index: int, bindings: Mapping[str, Binding], objects: Objects) -> Use:
    where = f"uses[{index}]"
    record = _record(row, "use", where)
    parameter = record["parameter"]
    if type(parameter) is not str or parameter not in bindings:
        raise ArtifactError(f"{where}.parameter", f"{shorten(parameter)!r} is not bound")
    policy = record.get("activation_policy")
    known_policy = type(policy) is str and policy in contract.activation_policies()
    if "activation_policy" in record and not known_policy:
        known = ", ".join(sorted(contract.activation_policies()))
        raise ArtifactError(f"{where}.activation_policy", f"{shorten(policy)!r} is not one of {known}")
    if "auxiliaries" not in record:
        return Use(parameter, _id(record["input"], f"{where}.input"), policy, _NO_AUXILIARIES)
    roles = _object_of(record["auxiliaries"], f"{where}.auxiliaries")
    auxiliaries = {
        _id(role, f"{where}.auxiliaries"): _binding(value, objects, f"{where}.auxiliaries.{shorten(role)}")
        for role, value in roles.items()
    }
    return Use(parameter, _id(record["input"], f"{where}.input"), policy, auxiliaries)


def _metadata(value: Any) -> dict[str, Any]:
    metadata = _open_object(value, "metadata")
    if "name" in metadata and (type(metadata["name"]) is not str or not metadata["name"]):
        raise ArtifactError("metadata.name", "must be a nonempty string")
    return metadata


def _open_object(value: Any, where: str) -> dict[str, Any]:
    checked = _object_of(value, where)
    check_finite(checked, where)
    return checked


def _object_of(value: Any, where: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise ArtifactError(where, "must be an object")
    return value


def _list(value: Any, where: str, *, empty: bool = False) -> list[Any]:
    if type(value) is not list or not (value or empty):
        raise ArtifactError(where, "must be a list" if empty else "must be a nonempty list")
    return value


def _record(value: Any, record: str, where: str) -> dict[str, Any]:
    checked = _object_of(value, where)
    _members(checked, record, where)
    return checked


def _members(value: dict[str, Any], record: str, where: str) -> None:
    members = contract.members(record)
    if not members.required <= value.keys():
        missing = ", ".join(sorted(members.required - value.keys()))
        raise ArtifactError(where, f"missing member {missing}")
    if not value.keys() <= members.allowed:
        unknown = shorten(sorted(value.keys() - members.allowed)[0])
        raise ArtifactError(f"{where}.{unknown}", "unknown member")


def _id(value: Any, where: str) -> str:
    if type(value) is not str or not value or "\0" in value:
        raise ArtifactError(where, f"{shorten(value)!r} must be a nonempty string without NUL")
    return value


def _integer(value: Any, where: str, minimum: int = 0) -> int:
    if type(value) is not int or not minimum <= value <= contract.container().integer_max:
        kind = "a positive integer" if minimum else "an unsigned integer"
        raise ArtifactError(where, f"{shorten(value)} must be {kind} of at most 64 bits")
    return value
