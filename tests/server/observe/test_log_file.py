"""The request log's file: appending, rotation, and disks that refuse."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import OptionError
from ninfer.server.observe.log_file import LogFile, check_not_artifact

START = b'{"start":1}\n'
LIMIT = 1000


def line(number: int, size: int = 100) -> bytes:
    return f"{number}".ljust(size - 1, ".").encode() + b"\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def written(path: Path, count: int, *, limit: int | None = LIMIT, keep: int = 4) -> LogFile:
    file = LogFile(path, limit, keep)
    file.begin(START)
    for number in range(count):
        file.write(line(number))
    return file


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def numbers(path: Path) -> list[int]:
    return [int(entry.strip(b".")) for entry in path.read_bytes().splitlines() if not entry.startswith(b"{")]


def test_without_a_limit_there_is_one_file(path: Path) -> None:
    written(path, 500, limit=None).close()
    assert names(path) == ["log.jsonl"]
    assert numbers(path) == list(range(500))


def test_a_second_server_appends(path: Path) -> None:
    written(path, 3).close()
    first = path.read_bytes()
    written(path, 2).close()
    content = path.read_bytes()
    assert content.startswith(first)
    assert content.count(START) == 2


def test_rotation_moves_files_up_and_deletes_the_oldest(path: Path) -> None:
    written(path, 60, keep=2).close()
    assert names(path) == ["log.jsonl", "log.jsonl.1", "log.jsonl.2"]
    for rotated in (path.with_name("log.jsonl.1"), path.with_name("log.jsonl.2")):
        assert LIMIT <= rotated.stat().st_size < LIMIT + 100
        assert rotated.read_bytes().startswith(START)
    kept = [numbers(entry) for entry in (path.with_name("log.jsonl.2"), path.with_name("log.jsonl.1"), path)]
    joined = [number for part in kept for number in part]
    assert joined == list(range(joined[0], 60))


def test_keep_zero_deletes_the_full_file(path: Path) -> None:
    written(path, 35, keep=0).close()
    assert names(path) == ["log.jsonl"]
    assert numbers(path)[-1] == 34
    assert path.stat().st_size < LIMIT + 100


def test_a_full_file_is_rotated_before_anything_is_written(path: Path) -> None:
    path.write_bytes(b"old\n" * 500)
    written(path, 1).close()
    assert path.with_name("log.jsonl.1").read_bytes() == b"old\n" * 500
    assert path.read_bytes() == START + line(0)


def test_gaps_among_the_rotated_files_do_not_matter(path: Path) -> None:
    path.with_name("log.jsonl.3").write_bytes(b"old\n")
    written(path, 11, keep=4).close()
    assert path.with_name("log.jsonl.4").read_bytes() == b"old\n"


@pytest.mark.clause("JLOG-009")
def test_a_rename_that_fails_is_tried_again_after_another_limit(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A directory that is not empty stands where the oldest file would be deleted."""
    obstacle = path.with_name("log.jsonl.1")
    (obstacle / "inside").mkdir(parents=True)
    caplog.set_level(logging.WARNING)
    file = written(path, 30, keep=1)
    warnings = [record for record in caplog.records if "cannot rotate" in record.message]
    assert len(warnings) == 3  # one at each of 1000, 2000 and 3000 bytes
    assert numbers(path) == list(range(30))
    (obstacle / "inside").rmdir()
    obstacle.rmdir()
    for number in range(30, 41):
        file.write(line(number))
    file.close()
    assert numbers(obstacle) + numbers(path) == list(range(41))
    assert len([record for record in caplog.records if "cannot rotate" in record.message]) == 3


class FullDisk:
    """A disk that takes ``room`` bytes and no more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write = os.write
        self.room = 10**9
        monkeypatch.setattr(os, "write", self.write)

    def write(self, file: int, data: bytes) -> int:
        taken = min(self.room, len(data))
        if taken == 0:
            raise OSError(28, "No space left on device")
        self.room -= taken
        return self._write(file, data[:taken])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[FullDisk]:
    with monkeypatch.context() as patch:
        yield FullDisk(patch)


def test_a_full_disk_loses_whole_records_and_says_so(
    path: Path, disk: FullDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """Half a line never stays: the next one would be glued to it."""
    caplog.set_level(logging.WARNING)
    file = written(path, 2, limit=None)
    disk.room = 50
    for number in (2, 3, 4):
        file.write(line(number))
    disk.room = 10**9
    file.write(line(5))
    file.close()
    assert numbers(path) == [0, 1, 5]
    messages = [record.message for record in caplog.records]
    assert [message.split(":")[0] for message in messages] == ["request log", "request log"]
    assert "No space left" in messages[0]
    assert "3 records were lost" in messages[1]


@pytest.mark.parametrize("where", ["missing/log.jsonl", "."])
def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path, where: str) -> None:
    with pytest.raises(OptionError, match="--request-log-jsonl"):
        LogFile(tmp_path / where, None, 4)
    assert not (tmp_path / "missing").exists()


@given(st.lists(st.integers(5, 400), max_size=60))
@settings(max_examples=40, deadline=None)
def test_no_record_is_lost_whatever_their_sizes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    """With every rotated file kept, all records are there once and in order."""
    path = tmp_path_factory.mktemp("log") / "x"
    file = LogFile(path, LIMIT, 1000)
    file.begin(START)
    for number, size in enumerate(sizes):
        file.write(line(number, size))
    file.close()
    rotated = sorted(
        (entry for entry in path.parent.iterdir() if entry != path),
        key=lambda entry: -int(entry.suffix[1:]),
    )
    assert [number for entry in (*rotated, path) for number in numbers(entry)] == list(range(len(sizes)))
    assert all(entry.read_bytes().startswith(START) for entry in (*rotated, path))


def test_the_artifact_is_never_a_log(tmp_path: Path) -> None:
    artifact = tmp_path / "model.jsonl.1"
    artifact.write_bytes(b"weights")
    part = tmp_path / "model.jsonl.1.part-0001"
    part.write_bytes(b"more")
    link = tmp_path / "link"
    link.symlink_to(artifact)
    for path, rotated in ((artifact, 0), (link, 0), (part, 0), (tmp_path / "model.jsonl", 1)):
        with pytest.raises(OptionError, match=r"--request-log-jsonl: .* is the model artifact"):
            check_not_artifact(path, rotated, artifact)
    check_not_artifact(tmp_path / "model.jsonl", 0, artifact)
    check_not_artifact(tmp_path / "other", 4, artifact)
