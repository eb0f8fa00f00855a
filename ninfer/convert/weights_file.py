"""One safetensors file: its header, checked, and plain reads of element ranges.

Owns the file layout only (u64 header length, JSON header, data). Reads with ``pread`` into fresh arrays
and never maps the file, so that what a conversion holds in memory is what it asked for. Knows nothing of
models.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ninfer import spec
from ninfer.errors import CheckpointError

_MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own library


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies: safetensors dtype name, shape, absolute byte offset."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


class WeightsFile:
    """A safetensors file, open for reading.

    Errors: ``CheckpointError`` naming the file, and the tensor where one is wrong.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}") from error
        try:
            self.tensors: Mapping[str, StoredTensor] = self._read_header()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> WeightsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; harmless when repeated."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self, name: str, begin: int, end: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Elements ``[begin, end)`` of the flattened tensor.

        Shapes: float32 [end - begin]; BF16 and F16 widen exactly.
        Errors: ``CheckpointError`` for a dtype other than ``spec/convert.yaml``'s, or a value that is not
        finite.
        """
        tensor = self.tensors[name]
        sizes = spec.document("convert")["dtypes"]
        if tensor.dtype not in sizes:
            known = ", ".join(sizes)
            raise CheckpointError(f"{self.path}: tensor {name} has dtype {tensor.dtype}, not one of {known}")
        size = sizes[tensor.dtype]
        values = _widen(self._pread(tensor.offset + begin * size, (end - begin) * size), tensor.dtype)
        if not np.isfinite(values).all():
            raise CheckpointError(f"{self.path}: tensor {name} holds a value that is not finite")
        return values

    def _read_header(self) -> dict[str, StoredTensor]:
        size = os.fstat(self._descriptor).st_size
        length = int.from_bytes(self._pread(0, 8), "little") if size >= 8 else size
        if not 0 < length <= min(size - 8, _MAX_HEADER_BYTES):
            raise CheckpointError(f"{self.path}: not a safetensors file (its header length is wrong)")
        try:
            header = json.loads(self._pread(8, length))
            rows = {name: row for name, row in header.items() if name != "__metadata__"}
            return {name: _stored(name, row, 8 + length, size) for name, row in rows.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{self.path}: malformed safetensors header: {error}") from error

    def _pread(self, offset: int, size: int) -> bytearray:
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            count = os.preadv(self._descriptor, [view[done:]], offset + done)
            if count == 0:
                raise CheckpointError(f"{self.path}: ends at byte {offset + done}, inside a tensor")
            done += count
        return data


def _stored(name: str, row: Any, data_start: int, file_bytes: int) -> StoredTensor:
    begin, end = row["data_offsets"]
    shape = tuple(row["shape"])
    numbers = (begin, end, *shape)
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ValueError(f"tensor {name} has a bad shape or data_offsets")
    size = spec.document("convert")["dtypes"].get(row["dtype"])
    if (
        begin > end
        or data_start + end > file_bytes
        or (size is not None and end - begin != size * prod(shape))
    ):
        raise ValueError(f"tensor {name} has data_offsets that do not fit its shape or the file")
    return StoredTensor(name, str(row["dtype"]), shape, data_start + begin)


def _widen(data: bytearray, dtype: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    if dtype == "BF16":
        words = np.frombuffer(data, dtype="<u2").astype(np.uint32)
        words <<= 16
        return words.view(np.float32)
    if dtype == "F16":
        return np.frombuffer(data, dtype="<f2").astype(np.float32)
    return np.frombuffer(data, dtype="<f4")
