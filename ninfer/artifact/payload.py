"""The logical payload of an artifact: one byte space over the payload regions of all its files.

Owns the memory maps. A part is opened, and its header and length checked, when a byte of it is first wanted;
parts that nothing reads may be absent. Knows nothing of objects.
"""

from __future__ import annotations

import itertools
import mmap
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.contract import container
from ninfer.artifact.directory import FileEntry
from ninfer.artifact.framing import check_part
from ninfer.artifact.json_text import shorten
from ninfer.errors import ArtifactError

Bytes = NDArray[np.uint8]


def map_file(path: Path, name: str) -> Bytes:
    """A regular file as a read-only byte array backed by the page cache.

    Errors: ``ArtifactError`` naming the file when it cannot be opened, is empty or is no regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ArtifactError(name, "not a regular file")
            if status.st_size == 0:
                raise ArtifactError(f"{name} byte 0", "the file is empty")
            mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
    except (OSError, ValueError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ArtifactError(name, f"cannot be opened: {reason}") from error
    return np.frombuffer(mapped, dtype=np.uint8)


class Payload:
    """Reads byte ranges of the logical payload; zero-copy where a range lies in one file."""

    def __init__(self, entry: Path, files: Sequence[FileEntry], artifact_id: bytes, first: Bytes) -> None:
        self._folder = entry.parent
        self._files = files
        self._artifact_id = artifact_id
        self._starts = list(itertools.accumulate((file.payload_bytes for file in files), initial=0))
        self._regions: dict[int, Bytes] = {0: first}
        self._closed = False

    @property
    def total(self) -> int:
        """Bytes of the whole payload."""
        return self._starts[-1]

    def read(self, offset: int, length: int) -> Bytes:
        """Bytes [offset, offset + length): a read-only view, or a copy where files meet inside the range.

        Errors: ``ArtifactError`` for a range outside the payload and for a part that is absent or not ours.
        """
        if not 0 <= offset <= offset + length <= self.total:
            message = f"[{offset}, {offset + length}) is outside the payload of {self.total} bytes"
            raise ArtifactError("payload", message)
        pieces = [
            self._region(index)[max(offset - start, 0) : offset + length - start]
            for index, start in enumerate(self._starts[:-1])
            if start < offset + length and self._starts[index + 1] > offset
        ]
        if len(pieces) == 1:
            return pieces[0]
        try:
            return np.concatenate(pieces) if pieces else np.empty(0, np.uint8)
        except MemoryError as error:
            raise ArtifactError("payload", f"{length} bytes over several files fit no memory") from error

    def close(self) -> None:
        """Let go of the maps; they end with the last array that still looks into them."""
        self._closed = True
        self._regions.clear()

    def _region(self, index: int) -> Bytes:
        if self._closed:
            raise ArtifactError("payload", "the artifact is closed")
        region = self._regions.get(index)
        if region is None:
            region = self._regions.setdefault(index, self._open_part(index))
        return region

    def _open_part(self, index: int) -> Bytes:
        file = self._files[index]
        assert file.path is not None, "only the entry has no name"
        name = f"part file {shorten(file.path)!r}"
        constants = container()
        mapped = map_file(self._folder / file.path, name)
        check_part(name, mapped[: constants.header_bytes].tobytes(), index, self._artifact_id)
        expected = constants.payload_alignment + file.payload_bytes
        if mapped.size != expected:
            raise ArtifactError(f"{name} byte {min(mapped.size, expected)}", _length(mapped.size, expected))
        return mapped[constants.payload_alignment :]


def check_entry_length(mapped: Bytes, payload_start: int, payload_bytes: int) -> None:
    """The entry file must end exactly with its payload. Errors: ``ArtifactError`` naming the byte."""
    expected = payload_start + payload_bytes
    if mapped.size != expected:
        raise ArtifactError(f"byte {min(mapped.size, expected)}", _length(mapped.size, expected))


def _length(found: int, expected: int) -> str:
    return f"the file has {found} bytes, the directory says exactly {expected}"
