"""The 32-byte headers of entry and part files, packed and checked.

Owns magic numbers and header fields; knows nothing of what the JSON says.
Source: spec/artifact.yaml#container.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ninfer.artifact.contract import align_up, container
from ninfer.errors import ArtifactError

_HEADER = struct.Struct("<8sQ16s")


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """``json_bytes`` of directory text follow the header; the payload starts at ``payload_start``."""

    json_bytes: int
    artifact_id: bytes

    @property
    def payload_start(self) -> int:
        constants = container()
        return align_up(constants.header_bytes + self.json_bytes, constants.payload_alignment)


def pack_entry(header: EntryHeader) -> bytes:
    """The entry file's header."""
    return _HEADER.pack(container().entry_magic, header.json_bytes, header.artifact_id)


def pack_part(index: int, artifact_id: bytes) -> bytes:
    """The header of part ``index`` (≥ 1)."""
    return _HEADER.pack(container().part_magic, index, artifact_id)


def parse_entry(raw: bytes, file_bytes: int) -> EntryHeader:
    """Check an entry header against the file's length.

    Errors: ``ArtifactError`` at the byte that is wrong: magic (older versions and parts are named), a short
    file, ``json_bytes`` zero, over our limit or beyond the end.
    """
    constants = container()
    _check_entry_magic(raw[: constants.magic_bytes])
    if len(raw) < constants.header_bytes:
        raise ArtifactError(
            f"byte {len(raw)}", f"the file ends inside its {constants.header_bytes}-byte header"
        )
    _, json_bytes, artifact_id = _HEADER.unpack(raw[: constants.header_bytes])
    where = f"byte {constants.magic_bytes}"
    if json_bytes == 0:
        raise ArtifactError(where, "json_bytes is 0; a directory is needed")
    if json_bytes > file_bytes - constants.header_bytes:
        raise ArtifactError(where, f"json_bytes {json_bytes} reaches beyond the file's {file_bytes} bytes")
    if json_bytes > constants.max_directory_bytes:
        raise ArtifactError(where, f"json_bytes {json_bytes} is over {constants.max_directory_bytes}")
    return EntryHeader(json_bytes, artifact_id)


def check_part(name: str, raw: bytes, index: int, artifact_id: bytes) -> None:
    """Check a part's header. Errors: ``ArtifactError`` naming the file, the byte and both values."""
    constants = container()
    if len(raw) < constants.header_bytes:
        raise ArtifactError(f"{name} byte {len(raw)}", "the file ends inside its header")
    magic, found_index, found_id = _HEADER.unpack(raw[: constants.header_bytes])
    if magic != constants.part_magic:
        message = f"magic {magic.hex()}, a part has {constants.part_magic.hex()}"
        raise ArtifactError(f"{name} byte 0", message)
    if found_index != index:
        message = f"part index {found_index}, the directory lists this file as {index}"
        raise ArtifactError(f"{name} byte {constants.magic_bytes}", message)
    if found_id != artifact_id:
        message = f"artifact id {found_id.hex()}, the entry file has {artifact_id.hex()}"
        raise ArtifactError(f"{name} byte {constants.magic_bytes + 8}", message)


def _check_entry_magic(magic: bytes) -> None:
    expected = container().entry_magic
    if magic == expected:
        return
    stem = expected[:-1]
    if len(magic) == len(expected) and magic[:-1] == stem:
        version = magic[-1]
        age = "an older" if version < container().version else "a newer"
        advice = "convert its checkpoint again" if version < container().version else "use a newer NInfer"
        message = (
            f"this is {age} artifact, version {version}; version {container().version} is read: {advice}"
        )
        raise ArtifactError(f"byte {len(stem)}", message)
    if magic[:-1] == container().part_magic[:-1]:
        raise ArtifactError("byte 0", "this is a part file; open the entry file it belongs to")
    if len(magic) < len(expected):
        raise ArtifactError(f"byte {len(magic)}", "the file ends inside its header")
    raise ArtifactError("byte 0", f"magic {magic.hex()}, a .ninfer file has {expected.hex()}")
