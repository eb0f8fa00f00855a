"""Training rows made ahead by worker processes.

Workers write numbered shards into a folder; shard ``n`` depends only on the run's seed and ``n``, so a resumed
run goes on where it stopped and any number of workers makes the same data.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Iterator
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from tools.tiny import tokenizer
from tools.tiny.data.pack import training_rows

_AHEAD = 96  # shards kept ready


class Feed:
    """Batches of packed rows, in shard order, from ``workers`` processes.

    ``first`` is the number of the first shard. ``waited_s`` is the time for which training stood still.
    """

    def __init__(
        self, folder: Path, seed: int, *, rows: int, length: int, batches: int, workers: int, first: int = 0
    ) -> None:
        self._folder, self._rows, self._batches = folder, rows, batches
        self.shard, self.waited_s = first, 0.0
        folder.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("spawn")
        self._consumed: Synchronized[int] = context.Value("q", first)
        arguments = (str(folder), seed, rows * batches, length, workers, first, self._consumed)
        self._workers = [
            context.Process(target=_work, args=(index, *arguments), daemon=True) for index in range(workers)
        ]
        self._ready: queue.Queue[tuple[int, Tensor, Tensor]] = queue.Queue(maxsize=8)
        self._closed = threading.Event()
        self._loader = threading.Thread(target=self._load, args=(first,), daemon=True)

    def __enter__(self) -> Self:
        for worker in self._workers:
            worker.start()
        self._loader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.join()

    def batches(self, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Tokens [R, T] int64 and marks [R, T] uint8 on ``device``, without end; ``shard`` is the one in use."""
        while True:
            begin = time.perf_counter()
            shard, tokens, marks = self._ready.get()
            self.waited_s += time.perf_counter() - begin
            self.shard = shard
            yield tokens.to(device, non_blocking=True).long(), marks.to(device, non_blocking=True)

    def _load(self, shard: int) -> None:
        while not self._closed.is_set():
            path = self._folder / f"{shard}.npy"
            if not path.exists():
                time.sleep(0.002)
                continue
            packed = np.load(path)
            path.unlink()
            self._consumed.value = shard
            for batch in np.split(packed, self._batches):
                tokens, marks = (torch.from_numpy(batch[..., i].astype(kind)) for i, kind in _PARTS)
                if torch.cuda.is_available():
                    tokens, marks = tokens.pin_memory(), marks.pin_memory()
                self._put((shard, tokens, marks))
            shard += 1

    def _put(self, item: tuple[int, Tensor, Tensor]) -> None:
        while not self._closed.is_set():
            try:
                return self._ready.put(item, timeout=0.2)
            except queue.Full:
                continue


_PARTS = ((0, np.int16), (1, np.uint8))  # ids stay below 3,584


def _work(
    index: int, folder: str, seed: int, rows: int, length: int, workers: int, first: int, consumed: Synchronized[int]
) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.nice(5)  # the trainer's own thread comes first
    rust = tokenizer.load()
    shard = first + index
    while True:
        while shard > consumed.value + _AHEAD:
            time.sleep(0.05)
        made = training_rows(rust, seed * 1_000_003 + shard, rows, length)
        packed = np.stack([made.tokens, made.marks.astype(np.uint16)], -1)
        partial = Path(folder) / f"{shard}.part"
        with partial.open("wb") as file:
            np.save(file, packed)
        partial.rename(Path(folder) / f"{shard}.npy")
        shard += workers
