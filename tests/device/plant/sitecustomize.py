"""Changes an engine process from outside; Python reads this file first where its folder is on the path.

``PLANT`` is a comma-separated list. ``trace`` writes a line a round to ``PLANT_TRACE``: rows, graphs, and
launches without one. ``wild:N`` lets a kernel write to an illegal address in round N. ``overshoot`` sets
nothing aside for graphs. The product has no such switch.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    """Plant what is asked for in the engine's process, and only there."""
    if "ninfer.engine.child" not in sys.orig_argv:
        return
    for word in os.environ.get("PLANT", "").split(","):
        name, _, argument = word.partition(":")
        if name == "trace":
            trace(os.environ["PLANT_TRACE"])
        elif name == "wild":
            wild(int(argument))
        elif name == "overshoot":
            overshoot()


def trace(path: str) -> None:
    """One line of JSON a round."""
    import torch

    from ninfer.fast.program.gpu.forward import Forward
    from ninfer.fast.program.gpu.graphs import Graphs
    from ninfer.fast.program.gpu.program import GpuProgram

    counted: dict[str, Any] = {"keys": [], "replays": 0, "launches": 0}
    run, forward, round_, replay = Graphs.run, Forward.forward, GpuProgram.round, torch.cuda.CUDAGraph.replay

    def seen_run(self: Any, key: Any, launch: Any) -> None:
        family, shape = key
        counted["keys"].append([family, getattr(shape, "rows", shape)])
        run(self, key, launch)

    def seen_forward(self: Any, shape: Any) -> None:
        counted["launches"] += 1
        forward(self, shape)

    def seen_replay(self: Any) -> None:
        counted["replays"] += 1
        replay(self)

    def seen_round(self: Any, rows: Any) -> Any:
        counted.update(keys=[], replays=0, launches=0)
        drawn = round_(self, rows)
        with open(path, "a", encoding="utf-8") as sink:
            sink.write(json.dumps({"rows": len(rows)} | counted) + "\n")
        return drawn

    Graphs.run, Forward.forward, GpuProgram.round = seen_run, seen_forward, seen_round  # type: ignore[method-assign]
    torch.cuda.CUDAGraph.replay = seen_replay  # type: ignore[method-assign]


def wild(number: int) -> None:
    """An illegal address in round ``number``."""
    from ninfer.fast.program.gpu.program import GpuProgram

    round_, seen = GpuProgram.round, 0

    def faulty(self: Any, rows: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == number:
            import wild as kernels  # type: ignore[import-not-found]

            kernels.write[(1,)](1 << 44)
        return round_(self, rows)

    GpuProgram.round = faulty  # type: ignore[method-assign]


def overshoot() -> None:
    """Whatever graphs take is more than was set aside."""
    from ninfer.fast.program.gpu import graphs

    graphs.ALLOWANCE_BYTES = graphs.ALLOWANCE_PER_GRAPH = 0


main()
