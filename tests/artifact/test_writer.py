"""Files on disk: exact bytes, pieces in any order, full coverage, and nothing left behind by a failure."""

from __future__ import annotations

import errno
import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer.artifact import (
    Artifact,
    ArtifactPlan,
    ArtifactWriter,
    Binding,
    Component,
    PlannedResource,
    PlannedTensor,
)
from ninfer.artifact.codecs import encode_divisor, encode_rows, weight_divisor
from ninfer.errors import ArtifactError
from tests.artifact.building import ARTIFACT_ID, every_format, values, write

PLAN = ArtifactPlan(
    components={"text": Component({"architectures": ["X"]}, resources={"r": "resource/r"})},
    resources=[PlannedResource("resource/r", b"hello")],
    tensors=[PlannedTensor("weight/a", (2, 2), "bf16"), PlannedTensor("weight/b", (2, 130), "q5_g64_fp16")],
    bindings={"a": Binding.whole("weight/a"), "b": Binding.whole("weight/b")},
)
A = np.array([[1, 2], [3, 4]], np.float32)
B = values((2, 130), 0)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def payload(path: Path) -> bytes:
    """The logical payload, taken apart without our reader."""
    raw = path.read_bytes()
    length = struct.unpack_from("<Q", raw, 8)[0]
    directory = json.loads(raw[32 : 32 + length])
    data = raw[-(-(32 + length) // 4096) * 4096 :]
    for index, file in enumerate(directory["files"][1:], 1):
        part = (path.parent / file["path"]).read_bytes()
        assert part[:32] == b"NINPRT\0\3" + struct.pack("<Q", index) + raw[16:32]
        assert not any(part[32:4096])
        data += part[4096:]
    assert len(data) == sum(file["payload_bytes"] for file in directory["files"])
    return data


def test_the_entry_file_byte_by_byte(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ninfer", PLAN, {"a": A, "b": B}, artifact_id=ARTIFACT_ID)
    raw = path.read_bytes()
    assert raw[:8] == b"NINFER\0\3"
    assert raw[8:16] == struct.pack("<Q", 4064)
    assert raw[16:32] == ARTIFACT_ID
    directory = json.loads(raw[32:4096])
    assert directory["files"] == [{"path": None, "payload_bytes": 1040}]
    assert raw[4096:4101] == b"hello"
    assert raw[4101 : 4096 + 256] == bytes(251)
    assert raw[4096 + 256 : 4096 + 264] == bytes.fromhex("803f004040408040")
    assert len(raw) == 4096 + 512 + 528
    assert names(tmp_path) == ["a.ninfer"]


def test_parts_hold_the_same_payload_as_one_file(tmp_path: Path) -> None:
    plan, data = every_format()
    one = write(tmp_path / "one.ninfer", plan, data)
    parts = write(tmp_path / "parts.ninfer", plan, data, max_file_bytes=16_384)
    assert len(names(tmp_path)) > 30
    assert max(path.stat().st_size for path in tmp_path.iterdir() if path != one) <= 16_384
    assert payload(parts) == payload(one)


def test_artifact_ids_are_fresh(tmp_path: Path) -> None:
    first, second = (write(tmp_path / name, PLAN, {"a": A, "b": B}) for name in ("x", "y"))
    assert first.read_bytes()[16:32] != second.read_bytes()[16:32]


def test_blocks_of_rows_in_any_order_equal_the_whole(tmp_path: Path) -> None:
    plan, data = every_format()
    expected = payload(write(tmp_path / "whole.ninfer", plan, data))
    jobs = [(name, first) for name, array in data.items() for first in range(0, len(array), 128)]
    random.Random(1).shuffle(jobs)
    divisor = weight_divisor(float(np.abs(data["nvfp4"]).max()))
    with ArtifactWriter(tmp_path / "blocks.ninfer", plan) as writer:
        for name, first in jobs:
            rows = data[name][first : first + 128]
            writer.write_rows(f"weight/{name}", first, rows, divisor if name == "nvfp4" else None)
        writer.write_planes("weight/nvfp4", 0, encode_divisor(divisor))
        writer.publish()
    assert payload(tmp_path / "blocks.ninfer") == expected


def test_imported_planes_are_written_verbatim(tmp_path: Path) -> None:
    planes = encode_rows("q5_g64_fp16", B)
    with ArtifactWriter(tmp_path / "p.ninfer", PLAN) as writer:
        writer.write_rows("weight/a", 0, np.array([[0x7F81, 0xFFC1], [0x8000, 1]], np.uint16))
        writer.write_planes("weight/b", 0, {name: plane[: plane.size // 2] for name, plane in planes.items()})
        writer.write_planes("weight/b", 1, {name: plane[plane.size // 2 :] for name, plane in planes.items()})
        writer.publish()
    with Artifact.open(tmp_path / "p.ninfer") as artifact:
        assert artifact.planes("weight/a")["words"].tolist() == [[0x7F81, 0xFFC1], [0x8000, 1]]
        assert artifact.planes("weight/b")["base"].tobytes() == planes["base"].tobytes()


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    write(tmp_path / "a", PLAN, {"a": A, "b": B}, progress=lambda done, total: heard.append((done, total)))
    assert [total for _, total in heard] == [5 + 8 + 528] * len(heard)
    assert [done for done, _ in heard] == sorted({done for done, _ in heard})
    assert heard[-1][0] == heard[-1][1]


def test_every_byte_must_be_written_before_publication(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "a", PLAN) as writer:
        writer.write_tensor("weight/a", A)
        writer.write_rows("weight/b", 1, B[1:])
        with pytest.raises(ArtifactError, match=r"object 'weight/b': bytes \[0, 128\) were never written"):
            writer.publish()
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "job",
    [
        lambda writer: writer.write_rows("weight/b", 1, B[:1]),
        lambda writer: writer.write_bytes("weight/a", 7, b"xx"),
        lambda writer: writer.write_bytes("weight/a", -1, b"x"),
        lambda writer: writer.write_bytes("resource/r", 4, b"x"),
        lambda writer: writer.write_bytes("weight/none", 0, b"x"),
        lambda writer: writer.write_rows("resource/r", 0, A),
        lambda writer: writer.write_rows("weight/a", 1, A),
        lambda writer: writer.write_rows("weight/a", 0, A[:, :1]),
        lambda writer: writer.write_tensor("weight/a", A[:1]),
        lambda writer: writer.write_rows("weight/a", 0, A.astype(np.float64)),
        lambda writer: writer.write_rows("weight/b", 0, np.full((1, 130), np.nan, np.float32)),
    ],
)
def test_bytes_that_do_not_belong_are_refused(tmp_path: Path, job: Any) -> None:
    with ArtifactWriter(tmp_path / "a", PLAN) as writer:
        writer.write_rows("weight/b", 1, B[1:])
        with pytest.raises(ArtifactError, match="object '"):
            job(writer)
    assert names(tmp_path) == []


def test_leaving_without_publication_or_by_an_error_leaves_nothing(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "a", PLAN) as writer:
        writer.write_tensor("weight/a", A)
        assert len(names(tmp_path)) == 1
    assert names(tmp_path) == []
    with (
        pytest.raises(KeyboardInterrupt),
        ArtifactWriter(tmp_path / "a", PLAN, max_file_bytes=9000) as writer,
    ):
        raise KeyboardInterrupt
    assert names(tmp_path) == []


@pytest.mark.parametrize("existing", ["a", "a.part-0001"])
def test_existing_files_are_never_overwritten(tmp_path: Path, existing: str) -> None:
    plan, _ = every_format(128, 64)
    (tmp_path / existing).write_text("mine")
    with pytest.raises(ArtifactError, match="exists already"):
        ArtifactWriter(tmp_path / "a", plan, max_file_bytes=20_000)
    assert names(tmp_path) == [existing]
    assert (tmp_path / existing).read_text() == "mine"


def test_a_dangling_link_counts_as_existing(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ArtifactError, match="exists already"):
        ArtifactWriter(tmp_path / "a", PLAN)


def test_an_entry_that_appears_meanwhile_wins_and_our_parts_vanish(tmp_path: Path) -> None:
    plan, data = every_format(128, 64)
    with ArtifactWriter(tmp_path / "a", plan, max_file_bytes=20_000) as writer:
        for name, array in data.items():
            writer.write_tensor(f"weight/{name}", array)
        (tmp_path / "a").write_text("theirs")
        with pytest.raises(ArtifactError, match="cannot be written: File exists"):
            writer.publish()
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "theirs"


def test_parts_are_published_before_the_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked: list[str] = []
    original = os.link
    monkeypatch.setattr(os, "link", lambda a, b: (linked.append(Path(b).name), original(a, b)))
    plan, data = every_format(128, 64)
    write(tmp_path / "a", plan, data, max_file_bytes=20_000)
    assert linked == [*sorted(name for name in names(tmp_path) if name != "a"), "a"]


def test_a_file_system_without_hard_links_still_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with Artifact.open(write(tmp_path / "a", PLAN, {"a": A, "b": B})) as artifact:
        assert artifact.parameter("a").tolist() == A.tolist()
    assert names(tmp_path) == ["a"]


def test_errors_of_the_file_system_become_artifact_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ArtifactError, match="No such file"):
        ArtifactWriter(tmp_path / "none" / "a", PLAN)
    with pytest.raises(ArtifactError, match="too long"):
        ArtifactWriter(tmp_path / ("a" * 300), PLAN)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ArtifactError, match="No space left"):
        ArtifactWriter(tmp_path / "a", PLAN)
    assert names(tmp_path) == []


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: original(fd, bytes(data)[:7], offset))
    path = write(tmp_path / "a", PLAN, {"a": A, "b": B})
    monkeypatch.undo()
    assert payload(path) == payload(write(tmp_path / "b", PLAN, {"a": A, "b": B}))


def test_an_artifact_id_has_sixteen_bytes(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="artifact_id"):
        ArtifactWriter(tmp_path / "a", PLAN, artifact_id=b"short")
    assert names(tmp_path) == []
