"""Runs everything that serving will run, once, before there is anything to serve.

Kernels are compiled and loaded, libraries take their workspaces and buffers that are made at first use are
made: what serving adds to the device's memory later is nothing but pages.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ninfer.fast.ops.gpu_control import LANE
from ninfer.fast.program.gpu.chunk import Chunk, Prefill
from ninfer.fast.program.gpu.control import Control
from ninfer.fast.program.gpu.forward import Forward
from ninfer.fast.program.gpu.samplers import NOBODY
from ninfer.fast.program.gpu.shapes import Families


class RehearsedOptions(Protocol):
    """What a rehearsal needs to know of the program's sizes."""

    @property
    def lanes(self) -> int: ...
    @property
    def prefill_chunk(self) -> int: ...


def rehearse(
    forward: Forward, prefill: Prefill, control: Control, families: Families, options: RehearsedOptions
) -> None:
    """A whole chunk, shorter ones, a first token, a round of each shape and what commits it.

    Nothing of it stays: no slot is in use, keys go to the scratch page and a slot is zeroed when it is handed
    out.
    """
    # Kernels are compiled apart for a length of one, and where places are no multiples of 16.
    for start, count in ((0, options.prefill_chunk), (0, 1), (5, 3)):
        axes = np.tile(np.arange(start, start + count, dtype=np.int32), (3, 1))
        prefill.run(Chunk(np.zeros(count, np.int32), axes, start, control.padding, 0))
    control.begin()
    control.host_numbers[:] = 0
    control.host_words[:] = NOBODY
    control.host_rows[:] = 0
    control.host_rows[:, LANE] = control.padding
    for index in range(options.lanes):
        # Not committed: images stay as they are.
        control.host_blocks[index] = (index, 1, index, 0, 0, control.padding, 0, 0)
    control.folded.fill()[:] = control.host_blocks
    control.folded.sent()
    control.send()
    shapes = families.shapes()
    for shape in shapes:
        forward.forward(shape)
    for rows in sorted({shape.rows for shape in shapes}):
        forward.finish(rows)
    for blocks in families.folds:
        forward.fold(blocks)
    forward.head(1)
