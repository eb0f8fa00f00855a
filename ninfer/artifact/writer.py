"""``ArtifactWriter``: carries out an ``ArtifactPlan`` in pieces, in any order, in bounded memory.

Owns the mapping of (object, offset) to files, byte coverage and progress. Files appear under their names only
when every byte of every object has been written once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact import framing
from ninfer.artifact.codecs import encode_divisor, encode_rows, weight_divisor
from ninfer.artifact.contract import align_up, container
from ninfer.artifact.coverage import Coverage
from ninfer.artifact.directory import Directory
from ninfer.artifact.framing import EntryHeader
from ninfer.artifact.layouts import Geometry
from ninfer.artifact.plan import ArtifactPlan, place
from ninfer.artifact.publish import FileSet
from ninfer.errors import ArtifactError

Progress = Callable[[int, int], None]

_BLOCK_ELEMENTS = 1 << 18


class ArtifactWriter:
    """Writes one artifact; a context manager.

    ``with ArtifactWriter(path, plan) as writer: …; writer.publish()``. Leaving without ``publish`` removes
    every trace. ``progress(done, total)`` hears payload bytes after each write. ``artifact_id`` is drawn when
    not given.

    Errors: ``ArtifactError`` for a plan the reader would refuse, for existing targets, for bytes written
    twice, outside an object or not at all, for values a format cannot hold, and for the file system's errors.
    """

    def __init__(
        self,
        path: str | Path,
        plan: ArtifactPlan,
        *,
        max_file_bytes: int | None = None,
        artifact_id: bytes | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.path = Path(path)
        cap = container().default_max_file_bytes if max_file_bytes is None else max_file_bytes
        self._placement = place(plan, self.path.name, cap)
        self._progress = progress
        self._coverage = _coverage(self._placement.directory, self._placement.geometries)
        self._total = sum(found.bytes for found in self.directory.objects.values())
        self._done = sum(
            end - begin for found in self._placement.geometries.values() for begin, end in found.gaps()
        )
        identity = secrets.token_bytes(container().artifact_id_bytes) if artifact_id is None else artifact_id
        if len(identity) != container().artifact_id_bytes:
            message = f"has {len(identity)} bytes, not {container().artifact_id_bytes}"
            raise ArtifactError("artifact_id", message)
        self._files = self._create()
        try:
            self._write_headers(identity)
            for resource in plan.resources:
                self.write_bytes(resource.id, 0, resource.data)
        except BaseException:
            self._files.discard()
            raise

    @property
    def directory(self) -> Directory:
        """The directory as it is in the file."""
        return self._placement.directory

    @property
    def total_bytes(self) -> int:
        """Payload bytes of all objects."""
        return self._total

    def geometry(self, object_id: str) -> Geometry:
        """The planes of a planned tensor.

        Errors: ``ArtifactError`` for an id that is not a tensor of the plan.
        """
        found = self._placement.geometries.get(object_id)
        if found is None:
            raise ArtifactError(f"object {object_id!r}", "is not a tensor of this plan")
        return found

    def write_tensor(self, object_id: str, values: NDArray[Any]) -> None:
        """Encode and write a whole tensor in blocks of rows; ``values`` has its shape."""
        found = self.geometry(object_id)
        if values.shape != found.shape:
            raise ArtifactError(f"object {object_id!r}", f"is {list(found.shape)}, not {list(values.shape)}")
        divisor = None
        if found.format.kind == "block_scaled":
            divisor = weight_divisor(float(np.abs(values).max()))
            self.write_planes(object_id, 0, encode_divisor(divisor))
        rows = values.reshape(found.rows, found.columns) if found.format.kind == "direct" else values
        step = align_up(max(_BLOCK_ELEMENTS // found.columns, 1), found.row_block)
        for first in range(0, found.rows, step):
            self.write_rows(object_id, first, rows[first : first + step], divisor)

    def write_rows(
        self, object_id: str, first_row: int, rows: NDArray[Any], divisor: np.float32 | None = None
    ) -> None:
        """Encode and write rows [first_row, first_row + len(rows)): float32, or a direct format's own words.

        nvfp4 rows come in tiles of 128 with the ``divisor`` of the whole parent, whose plane is written
        separately (``write_planes`` with ``codecs.encode_divisor``).
        """
        found = self.geometry(object_id)
        end = first_row + len(rows)
        misfit = rows.size != len(rows) * found.columns or not 0 <= first_row < end <= found.rows
        if misfit or first_row % found.row_block or end % found.row_block:
            message = f"rows [{first_row}, {end}) of shape {list(rows.shape)} do not fit {list(found.shape)}"
            raise ArtifactError(f"object {object_id!r}", f"{message} in steps of {found.row_block}")
        try:
            planes = encode_rows(found.format.name, rows, divisor)
        except ArtifactError as error:
            raise ArtifactError(f"object {object_id!r} from row {first_row}", str(error)) from error
        self.write_planes(object_id, first_row, planes)

    def write_planes(self, object_id: str, first_row: int, planes: Mapping[str, NDArray[Any]]) -> None:
        """Write stored words: per plane the bytes of rows from ``first_row`` on, as they lie in the file."""
        found = self.geometry(object_id)
        for name, data in planes.items():
            plane = found.plane(name)
            offset = plane.offset + first_row // found.row_block * plane.block_bytes
            self.write_bytes(object_id, offset, np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)

    def write_bytes(self, object_id: str, offset: int, data: bytes | memoryview) -> None:
        """Write raw bytes at ``offset`` inside an object."""
        covered = self._coverage.get(object_id)
        if covered is None:
            raise ArtifactError(f"object {object_id!r}", "is not in this plan")
        view = memoryview(data).cast("B")
        if not len(view):
            return
        if not covered.add(offset, offset + len(view)):
            message = f"bytes [{offset}, {offset + len(view)}) are outside it or written already"
            raise ArtifactError(f"object {object_id!r}", message)
        self._write_payload(self.directory.objects[object_id].offset + offset, view)
        self._done += len(view)
        if self._progress is not None:
            self._progress(self._done, self._total)

    def publish(self) -> None:
        """Check that every byte is written, make the files durable and give them their names."""
        for object_id, covered in self._coverage.items():
            hole = covered.first_hole()
            if hole is not None:
                raise ArtifactError(
                    f"object {object_id!r}", f"bytes [{hole[0]}, {hole[1]}) were never written"
                )
        self._files.publish()

    def __enter__(self) -> ArtifactWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.discard()

    def _create(self) -> FileSet:
        files = self.directory.files
        targets = [self.path.with_name(file.path) if file.path else self.path for file in files]
        start = container().payload_alignment
        starts = [self._placement.payload_start] + [start] * (len(files) - 1)
        lengths = [begin + file.payload_bytes for begin, file in zip(starts, files, strict=True)]
        return FileSet(targets, lengths)

    def _write_headers(self, artifact_id: bytes) -> None:
        header = EntryHeader(len(self._placement.text), artifact_id)
        self._files.write(0, 0, memoryview(framing.pack_entry(header) + self._placement.text))
        for index in range(1, len(self.directory.files)):
            self._files.write(index, 0, memoryview(framing.pack_part(index, artifact_id)))

    def _write_payload(self, position: int, view: memoryview) -> None:
        """Split a logical range over the files it lies in."""
        file_start = self._placement.payload_start
        for index, file in enumerate(self.directory.files):
            count = min(file.payload_bytes - position, len(view))
            if count > 0:
                self._files.write(index, file_start + position, view[:count])
                view, position = view[count:], position + count
            if not len(view):
                return
            position -= file.payload_bytes
            file_start = container().payload_alignment


def _coverage(directory: Directory, geometries: Mapping[str, Geometry]) -> dict[str, Coverage]:
    """Padding between planes counts as written: new files are zero there."""
    return {
        object_id: Coverage(found.bytes, geometries[object_id].gaps() if object_id in geometries else ())
        for object_id, found in directory.objects.items()
    }
