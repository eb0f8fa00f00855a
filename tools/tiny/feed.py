"""Training rows made ahead by worker processes, as batches on the device.

Shard ``n`` depends only on the run's seed and ``n``, so a resumed run goes on where it stopped and any number
of workers makes the same data.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from tools.tiny.data.worker import Order, consumed_path, shard_path

_AHEAD = 96  # shards kept ready
_PARTS = ((0, np.int16), (1, np.uint8))  # ids stay below 3,584


class Feed:
    """Batches of packed rows, in shard order, from ``workers`` processes.

    ``first`` is the number of the first shard, ``shard`` the one in use; ``waited_s`` is the time for which
    training stood still.
    """

    def __init__(
        self, folder: Path, seed: int, *, rows: int, length: int, batches: int, workers: int, first: int = 0
    ) -> None:
        self._folder, self._rows, self._batches = folder, rows, batches
        self.shard, self.waited_s = first, 0.0
        self._orders = [
            Order(str(folder), seed, rows * batches, length, first + index, workers, _AHEAD)
            for index in range(workers)
        ]
        self._workers: list[subprocess.Popen[bytes]] = []
        self._ready: queue.Queue[tuple[int, Tensor, Tensor]] = queue.Queue(maxsize=8)
        self._closed = threading.Event()
        self._loader = threading.Thread(target=self._load, args=(first,), daemon=True)

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        for stale in self._folder.iterdir():
            stale.unlink()
        self._say_consumed(self.shard)
        quiet = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        for order in self._orders:
            command = [sys.executable, "-m", "tools.tiny.data.worker", json.dumps(asdict(order))]
            self._workers.append(subprocess.Popen(command, env=quiet))
        self._loader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._loader.join()
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.wait()

    def batches(self, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Tokens [R, T] int64 and marks [R, T] uint8 on ``device``, without end."""
        while True:
            begin = time.perf_counter()
            shard, tokens, marks = self._take()
            self.waited_s += time.perf_counter() - begin
            self.shard = shard
            yield tokens.to(device, non_blocking=True).long(), marks.to(device, non_blocking=True)

    def _take(self) -> tuple[int, Tensor, Tensor]:
        while True:
            try:
                return self._ready.get(timeout=5)
            except queue.Empty:
                if dead := [worker.args for worker in self._workers if worker.poll() is not None]:
                    raise RuntimeError(f"a data worker has ended: {dead[0]!r}") from None

    def _load(self, shard: int) -> None:
        while not self._closed.is_set():
            path = shard_path(self._folder, shard)
            if not path.exists():
                time.sleep(0.002)
                continue
            packed = np.load(path)
            path.unlink()
            self._say_consumed(shard)
            for batch in np.split(packed, self._batches):
                tokens, marks = (torch.from_numpy(batch[..., i].astype(kind)) for i, kind in _PARTS)
                if torch.cuda.is_available():
                    tokens, marks = tokens.pin_memory(), marks.pin_memory()
                self._put((shard, tokens, marks))
            shard += 1

    def _put(self, item: tuple[int, Tensor, Tensor]) -> None:
        while not self._closed.is_set():
            try:
                self._ready.put(item, timeout=0.2)
            except queue.Full:
                continue
            return

    def _say_consumed(self, shard: int) -> None:
        partial = self._folder / "consumed.part"
        partial.write_text(str(shard))
        partial.replace(consumed_path(self._folder))
