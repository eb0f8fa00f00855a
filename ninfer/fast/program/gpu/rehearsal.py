"""Runs everything that serving will run, once, before there is anything to serve.

Kernels are compiled and loaded, libraries take their workspaces and buffers that are made at first use are
made: what serving adds to the device's memory later is nothing but pages.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ninfer.fast.program.gpu.chunk import Chunk, Prefill
from ninfer.fast.program.gpu.control import Control
from ninfer.fast.program.gpu.forward import Forward, Shape


class RehearsedOptions(Protocol):
    """What a rehearsal needs to know of the program's sizes."""

    @property
    def lanes(self) -> int: ...
    @property
    def prefill_chunk(self) -> int: ...


def rehearse(forward: Forward, prefill: Prefill, control: Control, options: RehearsedOptions) -> None:
    """A whole chunk, shorter ones, a first token and a round of each batch size.

    Nothing of it stays: no slot is in use, keys go to page 0 and a slot is zeroed when it is handed out.
    """
    # Kernels are compiled apart for a length of one, and where places are no multiples of 16.
    for start, count in ((0, options.prefill_chunk), (0, 1), (5, 3)):
        axes = np.tile(np.arange(start, start + count, dtype=np.int32), (3, 1))
        prefill.run(Chunk(np.zeros(count, np.int32), axes, start, options.lanes, 0))
    control.host_numbers[:] = 0
    control.host_words[:] = 0
    control.host_words[:, 2:5] = -1
    for index in range(options.lanes):
        control.host_rows[index] = (0, 0, 0, 0, 0, index, index, 0)
        # Not committed: images stay as they are.
        control.host_blocks[index] = (index, 1, index, 0, 0, index, 0, 0)
    control.upload()
    for rows in range(1, options.lanes + 1):
        forward.forward(Shape(rows, rows))
        forward.finish(rows)
    forward.head(1)
