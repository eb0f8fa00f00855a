"""Small arrays on their way to a device: pinned memory that the host fills and kernels read.

A kernel reads later than its launch, so nothing is filled again before the host has waited once for all that
was launched until then. Rounds end in such a wait anyway: no copy needs an event of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ninfer.fast.ops.carry.gpu import carry, pull
from ninfer.fast.ops.gpu_control import ROW_WORDS
from ninfer.fast.program.gpu.device import Waiter


def pinned(shape: tuple[int, ...] | torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeroed memory of the host that kernels on ``device`` reach."""
    return torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")


class Crossing:
    """Keeps memory that a launch reads from being filled before it has run; ``waiter`` says what has."""

    def __init__(self, waiter: Waiter) -> None:
        self._waiter, self._sent = waiter, -1

    def ready(self) -> None:
        """Return when what was launched last has read the memory."""
        if self._sent == self._waiter.waits:
            self._waiter.wait()

    def sent(self) -> None:
        """What reads the memory is launched now."""
        self._sent = self._waiter.waits


class Staged:
    """``target`` [rows, words] int32 on its device: ``fill`` the array, say ``sent``, launch ``carry``."""

    def __init__(self, target: Tensor, waiter: Waiter) -> None:
        self.target = target
        self._host = pinned(target.shape, target.dtype, target.device)
        self._array = self._host.numpy()
        self._crossing = Crossing(waiter)
        self.sent = self._crossing.sent

    def fill(self) -> npt.NDArray[np.int32]:
        """The array, which no launch reads any more."""
        self._crossing.ready()
        return self._array

    def carry(self, rows: int) -> None:
        """Launch what brings the first ``rows`` over, alone or as part of a graph."""
        carry(self._host, self.target, rows * self.target.shape[1])


class Ring:
    """Control records that launches read one after the other, each where the one before it ended.

    ``rows`` [most, ROW_WORDS] int32 on the device get those of a launch. One captured ``pull`` serves every
    place of the ring, for the place is known on the device; so launches follow each other without a wait.
    """

    def __init__(self, rows: Tensor, length: int, waiter: Waiter) -> None:
        """Room for ``length`` records."""
        assert length >= len(rows)
        self._rows, self._length, self._waiter = rows, length, waiter
        self._host = pinned((length, ROW_WORDS), torch.int32, rows.device)
        self._array = self._host.numpy()
        self._cursor = torch.zeros(1, dtype=torch.int32, device=rows.device)
        # Where the next records stand, and how much of the ring may not have been read since ``_seen`` waits.
        self._at, self._unread, self._seen = 0, 0, 0

    def next(self, count: int) -> npt.NDArray[np.int32]:
        """Where to write the ``count`` records of the next launch, which must be that of ``pull(count)``."""
        begin = self._at if self._at + count <= self._length else 0
        skipped = 0 if begin == self._at else self._length - self._at
        if self._unread + skipped + count > self._length and self._seen == self._waiter.waits:
            self._waiter.wait()
        if self._seen != self._waiter.waits:
            self._seen, self._unread = self._waiter.waits, 0
        self._at = begin + count
        self._unread += skipped + count
        return self._array[begin : self._at]

    def pull(self, count: int) -> None:
        """Launch what brings the next ``count`` records over, alone or as part of a graph."""
        pull(self._host, self._cursor, self._rows, count)


class Told:
    """What launches leave for the host: ``memory`` for kernels to write, ``array`` to read after a wait."""

    def __init__(self, shape: tuple[int, ...] | torch.Size, device: torch.device) -> None:
        self.memory = pinned(shape, torch.int32, device)
        self.array: npt.NDArray[Any] = self.memory.numpy()
