"""CUDA graphs of a round's halves, one per shape: captured once, replayed afterwards.

Without graphs the same launches run one by one. Owns the graphs and the memory they took.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from ninfer import collector
from ninfer.fast.program.gpu.device import free_bytes

# Contract: what start-up sets aside for graphs.
ALLOWANCE_BYTES, ALLOWANCE_PER_GRAPH = 64 << 20, 4 << 20


def allowance(executables: int) -> int:
    """Device memory set aside for ``executables`` captured graphs."""
    return ALLOWANCE_BYTES + ALLOWANCE_PER_GRAPH * executables if executables else 0


class Graphs:
    """``run(key, launch)`` captures ``launch`` at its first call with ``key`` and replays it from then on.

    ``enabled`` False, or a device without graphs, launches every time. ``measured_bytes`` is what they took.
    """

    def __init__(self, device: torch.device, enabled: bool) -> None:
        self.enabled = enabled and device.type == "cuda"
        self._device = device
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.measured_bytes = 0

    @property
    def count(self) -> int:
        """Graphs captured so far."""
        return len(self._graphs)

    def run(self, key: Hashable, launch: Callable[[], None]) -> None:
        """Replay, capture or launch."""
        if not self.enabled:
            launch()
            return
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._capture(launch)
        graph.replay()

    def _capture(self, launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
        # Kernels must be compiled and loaded before a capture. This run is followed by the replay of the same
        # round, so the caller sees to it that a launch may run twice (``GpuProgram.warm_up``).
        # A capture empties the allocator's cache, which would hide what the graph takes.
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        before = free_bytes(self._device)
        graph = torch.cuda.CUDAGraph()
        # Device objects that somebody left in cycles must not be given back in the middle of a capture.
        with collector.paused(), torch.cuda.graph(graph):
            launch()
        torch.cuda.synchronize(self._device)
        self.measured_bytes += max(0, before - free_bytes(self._device))
        return graph
