"""The directory of an artifact as frozen records: what the JSON says once it has been checked.

Owns the record types and nothing else; ``schema`` builds them from a file, ``plan`` for a new one.
Offsets are bytes in the logical payload (all files' payload regions in a row); ranges are logical elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorObject:
    """A stored tensor: ``bytes`` encoded bytes at ``offset``; ``shape`` [] is a scalar."""

    id: str
    shape: Shape
    format: str
    layout: str
    offset: int
    bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class ResourceObject:
    """A stored byte string."""

    id: str
    encoding: str
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """Logical elements [begin, end) of a tensor object, flattened in C order."""

    object: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Binding:
    """Where a parameter's elements are: one whole object, or parts in order; exactly one of the two."""

    object: str | None = None
    parts: tuple[Part, ...] = ()

    @classmethod
    def whole(cls, object_id: str) -> Binding:
        """The whole of one tensor object, in its shape."""
        return cls(object=object_id)

    @classmethod
    def ranges(cls, parts: Iterable[tuple[str, int, int]]) -> Binding:
        """Element ranges (object id, begin, end) in order."""
        return cls(parts=tuple(Part(*part) for part in parts))


@dataclass(frozen=True, slots=True)
class Proposal:
    """The optional proposal head of the text component; ``rows`` is set for the indexed domain only."""

    domain: Literal["full", "indexed"]
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Component:
    """One model part: its architecture config (open here) and the resources its front end reads."""

    config: Mapping[str, Any]
    target: str | None = None
    resources: Mapping[str, str] = field(default_factory=dict)
    proposal: Proposal | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """A parameter at one input: the activation policy (a ceiling) and auxiliary inputs by role."""

    parameter: str
    input: str
    activation_policy: str | None = None
    auxiliaries: Mapping[str, Binding] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of the set; ``path`` is None for the entry and a sibling file name for a part."""

    path: str | None
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Directory:
    """Everything the JSON says. ``objects`` keeps the order of the payload."""

    components: Mapping[str, Component]
    objects: Mapping[str, TensorObject | ResourceObject]
    bindings: Mapping[str, Binding]
    uses: tuple[Use, ...]
    files: tuple[FileEntry, ...]
    metadata: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @property
    def payload_bytes(self) -> int:
        return sum(file.payload_bytes for file in self.files)

    def tensor(self, object_id: str) -> TensorObject:
        """A tensor object that a checked binding names."""
        found = self.objects[object_id]
        assert isinstance(found, TensorObject), object_id
        return found

    def pieces(self, binding: Binding) -> tuple[tuple[TensorObject, int, int], ...]:
        """The binding as (object, begin, end) in order; a whole object is one piece."""
        if binding.object is not None:
            tensor = self.tensor(binding.object)
            return ((tensor, 0, tensor.elements),)
        return tuple((self.tensor(part.object), part.begin, part.end) for part in binding.parts)
