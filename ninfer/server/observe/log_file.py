"""The request log's file: whole lines appended, rotation by size, and what happens when a disk fails.

Owns bytes and names; what a line says is ``request_log.py``'s. Used by one thread at a time. A line is on
disk whole or not at all: what a failing write left is cut off again.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from ninfer.errors import OptionError

_log = logging.getLogger("ninfer.server")
_OPTION = "--request-log-jsonl"


class LogFile:
    """Appends lines to ``path``; at ``limit`` bytes it becomes ``path.1``, and ``keep`` such files stay.

    Every new file begins with the line given to ``begin``. ``limit`` None: one file without end.
    """

    def __init__(self, path: Path, limit: int | None, keep: int) -> None:
        """Errors: ``OptionError`` when the file cannot be opened for appending."""
        self._path = path
        self._limit = limit
        self._keep = keep
        self._first = b""
        self._failed = 0
        self._trial_at = limit or 0
        try:
            self._file = _open(path)
        except OSError as error:
            raise OptionError(_OPTION, f"cannot append to {path}: {error.strerror}") from error
        self._size = os.fstat(self._file).st_size

    def begin(self, line: bytes) -> None:
        """The first line of this server; a file that is already full is rotated before it."""
        self._first = line
        if not (self._full and self._rotate()):
            self._append(line)

    def write(self, line: bytes) -> None:
        """Append one line; the one that crosses the limit is the last of its file."""
        self._append(line)
        if self._full:
            self._rotate()

    def close(self) -> None:
        os.close(self._file)

    @property
    def _full(self) -> bool:
        return self._limit is not None and self._size >= self._trial_at

    def _append(self, line: bytes) -> None:
        """A line that cannot be written is lost; the first loss and the end of a row of them are told."""
        try:
            _write_all(self._file, line)
        except OSError as error:
            if self._failed == 0:
                _log.warning("request log: cannot write %s: %s", self._path, error.strerror)
            self._failed += 1
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            return
        self._size += len(line)
        if self._failed:
            _log.warning(
                "request log: %s can be written again; %d records were lost", self._path, self._failed
            )
            self._failed = 0

    def _rotate(self) -> bool:
        """Start a new file; whether it worked. If not, the same file goes on for another ``limit``."""
        assert self._limit is not None
        try:
            self._move_up()
            file = _open(self._path)
        except OSError as error:
            _log.warning("request log: cannot rotate %s: %s", self._path, error.strerror)
            self._trial_at = self._size + self._limit
            return False
        os.close(self._file)
        self._file, self._trial_at = file, self._limit
        self._size = os.fstat(file).st_size
        self._append(self._first)
        return True

    def _move_up(self) -> None:
        """Rename the file to ``.1`` after the older ones have made room; a failure leaves its name."""
        if self._keep == 0:
            self._path.unlink()
            return
        aside = self._numbered("rotating")
        self._path.rename(aside)
        try:
            last = self._numbered(self._keep)
            if last.exists():
                last.unlink()
            for number in range(self._keep - 1, 0, -1):
                older = self._numbered(number)
                if older.exists():
                    older.rename(self._numbered(number + 1))
            aside.rename(self._numbered(1))
        except OSError:
            aside.rename(self._path)
            raise

    def _numbered(self, suffix: int | str) -> Path:
        return self._path.with_name(f"{self._path.name}.{suffix}")


def check_not_artifact(path: Path, rotated: int, artifact: Path) -> None:
    """Errors: ``OptionError`` when the log, or one of its ``rotated`` older files, is the artifact's."""
    for candidate in (path, *(path.with_name(f"{path.name}.{i}") for i in range(1, rotated + 1))):
        for part in _files_of(artifact):
            if _same(candidate, part):
                raise OptionError(_OPTION, f"{candidate} is the model artifact {artifact}")


def _files_of(artifact: Path) -> Iterator[Path]:
    """The entry file and its part files."""
    yield artifact
    yield from artifact.parent.glob(f"{_escaped(artifact.name)}.part-*")


def _escaped(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


def _same(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):
        if os.path.samefile(one, other):
            return True
    return os.path.realpath(one) == os.path.realpath(other)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
