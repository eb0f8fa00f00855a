"""Whole rounds of a random model on a device with other cuts of the delta rule and of attention.

    python -m tools.gpu_check.tune_round [27B:bf16] [--json out.json] [--only delta,attention,profile]

Prints milliseconds of verify blocks and of single steps for each cut, then where a verify block's time goes
by kernel. The cuts that are best here go into ``spec/gpu.yaml`` and the defaults of ``attend``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ninfer.fast.ops.attention import gpu as attention
from ninfer.fast.ops.gdn.gpu import DeltaCut
from tools.gpu_check.cells import Bench, copy_rate

COLUMNS = (4, 8, 16, 32)
CONTEXTS = (0, 8192, 65536)
# Keys a step, warps, stages of narrow and wide tiles; splits.
ATTENTION = (
    ((64, 4, 3, 2), 64),
    ((64, 8, 3, 2), 64),
    ((64, 8, 3, 3), 64),
    ((32, 4, 3, 3), 64),
    ((32, 4, 4, 2), 64),
)


class Rounds:
    """One lane of a model: times of its rounds, captured anew for each cut."""

    def __init__(self, name: str) -> None:
        size, weights = name.split(":")
        self.bench = Bench(size, weights, "bf16", max(CONTEXTS), 1, 64)
        self.copy = copy_rate()
        self.rows: list[dict[str, Any]] = []

    def measure(self, cut: str, columns: Sequence[int], contexts: Sequence[int]) -> None:
        """Verify blocks at 8K and single steps, printed with their fraction of the copy rate."""
        self.bench.program._graphs._graphs.clear()
        row: dict[str, Any] = {"cut": cut}
        for count in columns:
            seconds = self.bench.verify(count, 8192)
            row[f"verify {count}"] = [
                seconds * 1e3,
                self.bench.floor_bytes(count, 1, 8192) / self.copy / seconds,
            ]
        for context in contexts:
            seconds = self.bench.decode(1, context)[0]
            row[f"step @{context}"] = [
                seconds * 1e3, self.bench.floor_bytes(1, 1, context) / self.copy / seconds
            ]  # fmt: skip
        self.rows.append(row)
        shown = " ".join(f"{key}={a:.3f}/{b:.3f}" for key, (a, b) in list(row.items())[1:])
        print(f"{cut:26} {shown}", flush=True)

    def delta(self) -> None:
        """Slices of a value head."""
        nets = self.bench.program._forward._delta_nets
        known = nets._cut
        for slices in (1, 2, 4):
            nets._cut = DeltaCut(slices, 8)
            self.measure(f"delta slices={slices}", COLUMNS, (8192,))
        nets._cut = known

    def attention(self) -> None:
        """Tiles and splits."""
        attend, merge = attention.attend, attention.merge
        for tile, splits in ATTENTION:
            attention.attend = partial(attend, tile=tile, splits=splits)  # type: ignore[assignment]
            attention.merge = partial(merge, splits=splits)  # type: ignore[assignment]
            try:
                self.measure(f"attend {tile} splits={splits}", (8, 32), CONTEXTS)
            except Exception as error:
                print(f"attend {tile} splits={splits}: {type(error).__name__}: {error}", flush=True)
        attention.attend, attention.merge = attend, merge

    def profile(self) -> None:
        """Kernels of a single step and of verify blocks."""
        self.bench.program._graphs._graphs.clear()
        self.bench.profiles((8, 32))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what ``--only`` names, or all of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cell", nargs="?", default="27B:bf16")
    parser.add_argument("--only", default="delta,attention,profile")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    rounds = Rounds(arguments.cell)
    print(f"{torch.cuda.get_device_name()} copy_tb_s={rounds.copy / 1e12:.3f}", flush=True)
    rounds.measure("as committed", COLUMNS, CONTEXTS)
    for name in arguments.only.split(","):
        if name:
            getattr(rounds, name)()
        if arguments.json:
            arguments.json.write_text(json.dumps(rounds.rows, indent=1))


if __name__ == "__main__":
    main()
