"""Part files: borders anywhere, opened when used, refused by byte when they are not ours."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.artifact import Artifact
from ninfer.errors import ArtifactError
from tests.artifact.building import frame, frame_part, small_directory, small_payload


def split(folder: Path, borders: list[int]) -> Path:
    """The small artifact cut at the given payload offsets into oddly named parts."""
    payload, value = small_payload(), small_directory()
    edges = [0, *borders, len(payload)]
    pieces = [payload[a:b] for a, b in itertools.pairwise(edges)]
    value["files"] = [
        {"path": None if i == 0 else f"piece {i}.bin", "payload_bytes": len(piece)}
        for i, piece in enumerate(pieces)
    ]
    path = folder / "entry.ninfer"
    path.write_bytes(frame(value, pieces[0]))
    for index, piece in enumerate(pieces[1:], 1):
        (folder / f"piece {index}.bin").write_bytes(frame_part(index, piece))
    return path


@settings(max_examples=30)
@given(borders=st.lists(st.integers(1, 1023), unique=True, max_size=12).map(sorted))
def test_borders_may_lie_anywhere(borders: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    with Artifact.open(split(tmp_path_factory.mktemp("split"), borders)) as artifact:
        assert artifact.resource("text", "tokenizer.json") == b"hello"
        assert artifact.parameter("whole").reshape(-1).tolist() == list(range(8))
        assert artifact.parameter("parts").reshape(-1).tolist() == [12, 13, 14, 15, 0, 1, 2, 3]
        words = artifact.planes("b")["words"]
        assert np.array_equal(
            words.astype(np.uint32) << 16, np.arange(8, 16, dtype="<f4").view("<u4").reshape(2, 4)
        )
        assert words.flags.aligned


def test_parts_nothing_reads_may_be_absent(tmp_path: Path) -> None:
    path = split(tmp_path, [300, 520, 700])
    for index in (2, 3):
        (tmp_path / f"piece {index}.bin").unlink()
    with Artifact.open(path) as artifact:
        assert artifact.parameter("whole").shape == (2, 4)
        with pytest.raises(ArtifactError) as error:
            artifact.parameter("parts")
        assert error.value.where == "part file 'piece 2.bin'"
        assert "No such file" in str(error.value)


@pytest.mark.parametrize(
    ("part", "where", "message"),
    [
        (b"", "byte 0", "empty"),
        (b"NINPRT", "byte 6", "ends inside its header"),
        (frame_part(1, bytes(724), artifact_id=bytes(16)), "byte 16", "artifact id"),
        (frame_part(2, bytes(724)), "byte 8", "part index 2"),
        (frame(small_directory(), b""), "byte 0", "magic"),
        (frame_part(1, bytes(723)), "byte 4819", "the file has 4819 bytes, the directory says exactly 4820"),
        (frame_part(1, bytes(725)), "byte 4820", "exactly 4820"),
        (frame_part(1, b"")[:100], "byte 100", "exactly 4820"),
    ],
)
def test_wrong_parts_are_refused_when_used(tmp_path: Path, part: bytes, where: str, message: str) -> None:
    path = split(tmp_path, [300])
    (tmp_path / "piece 1.bin").write_bytes(part)
    with Artifact.open(path) as artifact:
        assert artifact.parameter("whole").size == 8
        with pytest.raises(ArtifactError) as error:
            artifact.parameter("parts")
    assert error.value.where == f"part file 'piece 1.bin' {where}"
    assert message in str(error.value)


def test_a_part_name_no_file_system_takes_is_refused_in_short(tmp_path: Path) -> None:
    value = small_directory()
    value["files"] = [{"path": None, "payload_bytes": 300}, {"path": "x" * 3000, "payload_bytes": 724}]
    path = tmp_path / "entry.ninfer"
    path.write_bytes(frame(value, small_payload()[:300]))
    with Artifact.open(path) as artifact:
        with pytest.raises(ArtifactError, match="File name too long") as error:
            artifact.parameter("parts")
        assert len(str(error.value)) < 300


def test_parts_lie_beside_the_entry_as_it_was_named(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "links").mkdir()
    split(tmp_path / "store", [300])
    for name in ("entry.ninfer", "piece 1.bin"):
        (tmp_path / "links" / name).symlink_to(tmp_path / "store" / name)
    with Artifact.open(tmp_path / "links" / "entry.ninfer") as artifact:
        assert artifact.parameter("parts").size == 8


def test_ranges_outside_the_payload_are_refused(tmp_path: Path) -> None:
    with Artifact.open(split(tmp_path, [10])) as artifact:
        payload: Any = artifact._payload
        assert payload.read(1024, 0).size == 0
        assert payload.read(9, 2).tobytes() == small_payload()[9:11]
        for offset, length in [(-1, 1), (0, 1025), (1024, 1), (5, -1)]:
            with pytest.raises(ArtifactError, match="outside the payload"):
                payload.read(offset, length)


def test_a_resource_larger_than_memory_is_refused(tmp_path: Path) -> None:
    value, size = small_directory(), 1 << 33
    value["objects"].append({"id": "huge", "kind": "resource", "encoding": "raw_bytes_v1"})
    value["objects"][-1] |= {"offset": 1024, "bytes": size - 1024}
    value["components"]["text"]["resources"]["huge"] = "huge"
    value["files"] = [{"path": None, "payload_bytes": size}]
    path = tmp_path / "entry.ninfer"
    path.write_bytes(frame(value, small_payload()))
    os.truncate(path, 4096 + size)
    with Artifact.open(path) as artifact, address_space(1 << 30):
        assert artifact.parameter("whole").size == 8
        with pytest.raises(ArtifactError, match="object 'huge': 8589933568 bytes do not fit"):
            artifact.resource("text", "huge")


@contextlib.contextmanager
def address_space(room: int) -> Iterator[None]:
    """Let the process map at most ``room`` bytes more than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
