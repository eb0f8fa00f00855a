"""A set of new files that appear all at once or not at all.

Owns temporary names, positioned writes, fsync, and publication: parts first, the entry last, by hard link, so
that nothing existing is ever overwritten. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from ninfer.errors import ArtifactError


class FileSet:
    """Temporary files beside their targets, opened for writing, already of their final length.

    ``targets`` in publication order of the reader: entry first. Errors everywhere: ``ArtifactError`` naming
    the file.
    """

    def __init__(self, targets: Sequence[Path], lengths: Sequence[int]) -> None:
        self._targets = tuple(targets)
        self._descriptors: list[int] = []
        self._temporary: list[Path] = []
        for target in self._targets:
            if os.path.lexists(target):
                raise ArtifactError(str(target), "exists already; nothing is overwritten")
        token = secrets.token_hex(4)
        try:
            for target, length in zip(self._targets, lengths, strict=True):
                temporary = target.with_name(f".{target.name}.{token}.tmp")
                self._descriptors.append(
                    os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                )
                self._temporary.append(temporary)
                os.ftruncate(self._descriptors[-1], length)
        except (OSError, ValueError) as error:
            self.discard()
            raise _failure(target, error) from error

    def write(self, index: int, offset: int, data: memoryview) -> None:
        """Write all of ``data`` at ``offset`` of file ``index``."""
        try:
            while len(data):
                count = os.pwrite(self._descriptors[index], data, offset)
                data, offset = data[count:], offset + count
        except OSError as error:
            raise _failure(self._targets[index], error) from error

    def publish(self) -> None:
        """Make the files durable and give them their names, the entry last."""
        published: list[Path] = []
        target = self._targets[0]
        try:
            for descriptor in self._descriptors:
                os.fsync(descriptor)
            for index in [*range(1, len(self._targets)), 0]:
                target = self._targets[index]
                _link(self._temporary[index], target)
                published.append(target)
            _sync_folder(target.parent)
        except OSError as error:
            for path in published:
                path.unlink(missing_ok=True)
            raise _failure(target, error) from error
        finally:
            self.discard()

    def discard(self) -> None:
        """Close and remove the temporary files; harmless when there are none left."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        for temporary in self._temporary:
            temporary.unlink(missing_ok=True)
        self._descriptors.clear()
        self._temporary.clear()


def _link(temporary: Path, target: Path) -> None:
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:
        # File systems without hard links: claim the name, then replace the empty claim.
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        try:
            temporary.replace(target)
        except OSError:
            target.unlink(missing_ok=True)
            raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failure(target: Path, error: OSError | ValueError) -> ArtifactError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ArtifactError(str(target), f"cannot be written: {reason}")
