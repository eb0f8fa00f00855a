"""``Artifact``: an open ``.ninfer`` file. Directory, resources, decoded parameters, raw planes.

Owns the way from a logical name through its binding to bytes and numbers. Opening reads the header and the
directory only; formats, sizes, alignments and part files are checked when an object is first used.
The one exception that a file can cause here is ``ArtifactError``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer import collector
from ninfer.artifact import json_text, schema, shapes
from ninfer.artifact.contract import container, encodings
from ninfer.artifact.directory import Binding, Directory, ResourceObject, Shape, TensorObject
from ninfer.artifact.framing import parse_entry
from ninfer.artifact.json_text import shorten
from ninfer.artifact.payload import Payload, check_entry_length, map_file
from ninfer.artifact.summary import WeightSummary, prefill_signature, summarise
from ninfer.artifact.tensors import TensorReader
from ninfer.errors import ArtifactError

Piece = tuple[TensorObject, int, int]

# No machine holds more; NumPy refuses such arrays with another exception.
_MAX_ELEMENTS = 1 << 48


@dataclass(frozen=True, slots=True)
class EncodedPiece:
    """Stored words behind (a piece of) a parameter, for engines that compute on them.

    ``begin``, ``end``: logical elements of ``object``; ``rows``: the same as whole rows of the object, or
    None where the range is not row-aligned. ``planes``: all planes of the whole object, read-only, zero-copy
    where the object lies in one file:
    direct ``words`` [shape] (bf16 as uint16, float32, int32); grouped ``base`` uint8 [N, ·], ``high`` uint8
    [N, ·] (5 and 6 bits) and ``scales`` float16 [N, groups]; fp8 ``codes`` uint8 [N, K] and ``scales`` uint16
    (bf16 words) [N]; nvfp4 ``codes`` uint8 [N, K/2], ``scales`` uint8 [N/128, K/64, 512] (swizzled) and
    ``divisor`` float32 [].
    """

    object: TensorObject
    begin: int
    end: int
    rows: tuple[int, int] | None
    planes: Mapping[str, NDArray[Any]]


class Artifact:
    """An open artifact; a context manager. Reading is thread-safe.

    Attributes: ``path``, ``artifact_id`` (16 bytes), ``directory``.
    """

    def __init__(self, path: Path, artifact_id: bytes, directory: Directory, payload: Payload) -> None:
        self.path = path
        self.artifact_id = artifact_id
        self.directory = directory
        self._payload = payload
        self._tensors = TensorReader(payload)

    @classmethod
    def open(cls, path: str | Path) -> Artifact:
        """Open the entry file of an artifact and check its directory.

        Errors: ``ArtifactError`` naming the byte or JSON member that is wrong, or the file.
        """
        entry = Path(path)
        mapped = map_file(entry, shorten(entry))
        header_bytes = container().header_bytes
        header = parse_entry(mapped[:header_bytes].tobytes(), mapped.size)
        text = mapped[header_bytes : header_bytes + header.json_bytes].tobytes()
        # Scanning the half a million objects of a mixture-of-experts directory again and again took half of
        # the time (0.53 s against 0.28 s).
        with collector.paused():
            directory = schema.build(json_text.parse(text), entry.name)
        check_entry_length(mapped, header.payload_start, directory.files[0].payload_bytes)
        first = mapped[header.payload_start :]
        payload = Payload(entry, directory.files, header.artifact_id, first)
        return cls(entry, header.artifact_id, directory, payload)

    def close(self) -> None:
        """Let go of the files; arrays handed out before stay valid."""
        self._payload.close()

    def __enter__(self) -> Artifact:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def public_name(self) -> str:
        """``metadata.name``, else the text component's architecture.

        Errors: ``ArtifactError`` when the file has neither.
        """
        name = self.directory.metadata.get("name")
        if name is not None:
            return str(name)
        architectures = self.directory.components["text"].config.get("architectures")
        if isinstance(architectures, list) and architectures and isinstance(architectures[0], str):
            return architectures[0]
        raise ArtifactError(
            "components.text.config.architectures", "must be a list with one architecture name"
        )

    def resource(self, component: str, role: str) -> bytes:
        """The bytes of a component's resource.

        Errors: ``ArtifactError`` when the component or role is absent or the bytes cannot be read.
        """
        found = self.directory.components.get(component)
        if found is None:
            raise ArtifactError(f"components.{shorten(component)}", "this artifact has no such component")
        object_id = found.resources.get(role)
        if object_id is None:
            where = f"components.{shorten(component)}.resources.{shorten(role)}"
            raise ArtifactError(where, "this artifact has no such resource")
        resource = self.directory.objects[object_id]
        assert isinstance(resource, ResourceObject), "checked when the directory was built"
        if resource.encoding not in encodings():
            where = f"object {shorten(resource.id)!r}"
            raise ArtifactError(where, f"encoding {shorten(resource.encoding)!r} is not known")
        stored = self._payload.read(resource.offset, resource.bytes)
        try:
            return stored.tobytes()
        except MemoryError as error:
            where = f"object {shorten(resource.id)!r}"
            raise ArtifactError(where, f"{resource.bytes} bytes do not fit into memory") from error

    def parameter(self, name: str, rows: slice | None = None, shape: Shape | None = None) -> NDArray[Any]:
        """A parameter decoded through its binding: a fresh float32 array (int32 for int32 parameters).

        ``shape``: the logical shape the model expects; without it that of ``parameter_shape``. ``rows``: a
        slice of the first axis (step 1, clipped like any slice); nothing else is read.
        Errors: ``ArtifactError`` for an unknown name, an element count other than ``shape``'s, objects that
        are stored wrongly or mix int32 with other formats, and slices the parameter does not have.
        """
        return self._decode(self._binding(name), f"parameter {shorten(name)!r}", rows, shape)

    def auxiliary(self, binding: Binding, where: str = "auxiliary") -> NDArray[Any]:
        """The values behind an auxiliary binding of a use, decoded like a parameter."""
        return self._decode(binding, where, None, None)

    def parameter_shape(self, name: str) -> Shape:
        """The logical shape: the whole object's, or for row-aligned parts their rows stacked, else flat.

        Errors: ``ArtifactError`` for an unknown name.
        """
        return shapes.logical_shape(self._pieces(name))

    def parameter_formats(self, name: str) -> tuple[str, ...]:
        """The formats of the objects behind a parameter, without repetition, in order of its parts.

        Errors: ``ArtifactError`` for an unknown name.
        """
        return tuple(dict.fromkeys(tensor.format for tensor, _, _ in self._pieces(name)))

    def encoded(self, name: str) -> tuple[EncodedPiece, ...]:
        """The stored words behind a parameter, part by part.

        Errors: ``ArtifactError`` for an unknown name and for objects that are stored wrongly.
        """
        return tuple(
            EncodedPiece(tensor, begin, end, shapes.row_range(tensor, begin, end), self.planes(tensor.id))
            for tensor, begin, end in self._pieces(name)
        )

    def planes(self, object_id: str) -> Mapping[str, NDArray[Any]]:
        """All planes of one tensor object as ``EncodedPiece`` describes them.

        Errors: ``ArtifactError`` for an unknown tensor and for one that is stored wrongly.
        """
        return self._tensors.planes(self._tensor(object_id))

    def validate(self, object_id: str) -> None:
        """Scan every stored word of a tensor object for legality (tools and tests; engines never do).

        Errors: ``ArtifactError`` naming object, row and group.
        """
        self._tensors.validate(self._tensor(object_id))

    def weight_summary(self) -> WeightSummary:
        """Counts over the distinct tensors that parameters are bound to."""
        return summarise(self.directory)

    def prefill_signature(self) -> str:
        """A name for what prefilling this artifact costs."""
        return prefill_signature(self.directory)

    def _tensor(self, object_id: str) -> TensorObject:
        found = self.directory.objects.get(object_id)
        if not isinstance(found, TensorObject):
            raise ArtifactError(f"object {shorten(object_id)!r}", "this artifact has no such tensor")
        return found

    def _binding(self, name: str) -> Binding:
        binding = self.directory.bindings.get(name)
        if binding is None:
            raise ArtifactError(f"bindings[{shorten(name)!r}]", "this artifact has no such parameter")
        return binding

    def _pieces(self, name: str) -> tuple[Piece, ...]:
        return self.directory.pieces(self._binding(name))

    def _decode(self, binding: Binding, where: str, rows: slice | None, shape: Shape | None) -> NDArray[Any]:
        pieces = self.directory.pieces(binding)
        logical = shapes.resolve(pieces, shape, binding.object is not None, where)
        integer = {tensor.format == "int32" for tensor, _, _ in pieces}
        if len(integer) > 1:
            raise ArtifactError(where, "its parts mix int32 with other formats")
        if rows is not None:
            begin, end, logical = shapes.slice_rows(logical, rows, where)
            pieces = shapes.cut(pieces, begin, end)
        try:
            return self._decode_pieces(pieces, np.int32 if True in integer else np.float32).reshape(logical)
        except MemoryError as error:
            raise ArtifactError(where, f"{list(logical)} does not fit into memory") from error

    def _decode_pieces(self, pieces: tuple[Piece, ...], dtype: type[np.generic]) -> NDArray[Any]:
        for tensor, _, _ in pieces:  # sizes are checked against the file before anything is allocated
            self._tensors.geometry(tensor)
        elements = sum(end - begin for _, begin, end in pieces)
        if elements > _MAX_ELEMENTS:
            raise MemoryError
        out: NDArray[Any] = np.empty(elements, dtype)
        position = 0
        for tensor, begin, end in pieces:
            self._tensors.decode_into(tensor, begin, end, out[position : position + end - begin])
            position += end - begin
        return out
