"""Small arrays on their way to a device: a pinned buffer to fill, and its twin that kernels read.

The copy runs in the order of the stream, later than the call that asks for it; a buffer is not filled again
before its last copy is through.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Staged:
    """``target`` [shape] on its device, and ``fill`` for the array to write before ``upload``."""

    def __init__(self, target: Tensor) -> None:
        cuda = target.device.type == "cuda"
        self.target = target
        self._host = torch.zeros(target.shape, dtype=target.dtype, pin_memory=cuda)
        self._array = self._host.numpy()
        self._event = torch.cuda.Event() if cuda else None  # type: ignore[no-untyped-call]

    def fill(self) -> npt.NDArray[np.int32]:
        """The array, which no copy reads any more."""
        if self._event is not None:
            self._event.synchronize()
        return self._array

    def upload(self, rows: int) -> None:
        """Carry the first ``rows`` over."""
        self.target[:rows].copy_(self._host[:rows], non_blocking=True)
        if self._event is not None:
            self._event.record()
