"""One process that makes training shards ahead of the trainer; started by ``feed.py``, needs no torch.

    python -m tools.tiny.data.worker '{"folder": …, "seed": …, …}'

Shard ``n`` is ``n.npy``: [rows, length, 2] uint16 of ids and marks. The trainer writes the number of the
shard it reads into ``consumed``; a worker stays at most ``ahead`` shards in front of it and ends with its
parent.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tools.tiny import tokenizer
from tools.tiny.data.pack import training_rows


@dataclass(frozen=True, slots=True)
class Order:
    """Which shards one worker makes: ``first``, ``first + step``, …; shard ``n`` follows from seed and
    ``n``.
    """

    folder: str
    seed: int
    rows: int
    length: int
    first: int
    step: int
    ahead: int


def shard_path(folder: Path, shard: int) -> Path:
    return folder / f"{shard}.npy"


def consumed_path(folder: Path) -> Path:
    return folder / "consumed"


def work(order: Order) -> None:
    """Make shards until the parent process is gone."""
    parent, folder, rust = os.getppid(), Path(order.folder), tokenizer.load()
    shard = order.first
    while os.getppid() == parent:
        if shard > _consumed(folder) + order.ahead:
            time.sleep(0.05)
            continue
        made = training_rows(rust, order.seed * 1_000_003 + shard, order.rows, order.length)
        partial = folder / f"{shard}.part"
        with partial.open("wb") as file:
            np.save(file, np.stack([made.tokens, made.marks.astype(np.uint16)], -1))
        partial.rename(shard_path(folder, shard))
        shard += order.step


def _consumed(folder: Path) -> int:
    return int(consumed_path(folder).read_text() or 0)


if __name__ == "__main__":
    os.nice(5)  # the trainer's own thread comes first
    work(Order(**json.loads(sys.argv[1])))
