"""A Hugging Face checkpoint directory: its JSON files and its tensors by name, whatever the sharding.

Owns finding and opening the files; knows nothing of architectures. Shards are opened once, on first use
of the header, and closed with the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ninfer.convert.weights_file import StoredTensor, WeightsFile
from ninfer.errors import CheckpointError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class Checkpoint:
    """An open checkpoint directory (a context manager).

    ``tensors`` maps every stored tensor's name to its place.
    Errors: ``CheckpointError`` naming the file or tensor.
    """

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise CheckpointError(f"{directory}: not a directory")
        self.directory = directory
        self.config = self.json_file("config.json")
        self._files: list[WeightsFile] = []
        self._owner: dict[str, WeightsFile] = {}
        try:
            self._open()
            self.tensors: Mapping[str, StoredTensor] = {
                name: file.tensors[name] for name, file in self._owner.items()
            }
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every weights file."""
        for file in self._files:
            file.close()

    def read(self, name: str, begin: int, end: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Elements ``[begin, end)`` of one flattened tensor as float32."""
        return self._owner[name].read(name, begin, end)

    def json_file(self, name: str) -> dict[str, Any]:
        """One JSON object of the directory. Errors: ``CheckpointError`` when missing or not an object."""
        path = self.directory / name
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError as error:
            raise CheckpointError(f"{path}: missing") from error
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: not readable as JSON: {error}") from error
        if not isinstance(content, dict):
            raise CheckpointError(f"{path}: must hold a JSON object")
        return content

    def _open(self) -> None:
        if (self.directory / _INDEX).is_file():
            self._open_shards()
        elif (self.directory / _SINGLE).is_file():
            file = self._add(_SINGLE)
            self._owner = dict.fromkeys(file.tensors, file)
        else:
            raise CheckpointError(f"{self.directory}: holds neither {_SINGLE} nor {_INDEX}")

    def _open_shards(self) -> None:
        index = self.json_file(_INDEX).get("weight_map")
        if not isinstance(index, dict) or not all(isinstance(shard, str) for shard in index.values()):
            raise CheckpointError(f"{self.directory / _INDEX}: weight_map must map tensors to file names")
        for shard in index.values():
            if Path(shard).name != shard:
                raise CheckpointError(f"{self.directory / _INDEX}: {shard!r} is not a file name")
        shards = {shard: self._add(shard) for shard in sorted(set(index.values()))}
        for name, shard in index.items():
            if name not in shards[shard].tensors:
                raise CheckpointError(
                    f"{self.directory / shard}: tensor {name}, listed in {_INDEX}, is missing"
                )
            self._owner[name] = shards[shard]
        self._refuse_unlisted(index)

    def _refuse_unlisted(self, index: Mapping[str, str]) -> None:
        for file in self._files:
            for name in file.tensors:
                if name not in index:
                    raise CheckpointError(f"{file.path}: tensor {name} is not listed in {_INDEX}")

    def _add(self, name: str) -> WeightsFile:
        file = WeightsFile(self.directory / name)
        self._files.append(file)
        return file
