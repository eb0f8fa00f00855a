"""A device whose launches run as late as they may: when the host waits, and in their order."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ninfer.fast.program.gpu.device import Waiter
from ninfer.fast.program.gpu.program import GpuProgram


class LateDevice(Waiter):
    """Waits by running what was launched since the last wait."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self._launched: list[Callable[[], None]] = []

    def launch(self, work: Callable[[], None]) -> None:
        """Let ``work`` run at the next wait."""
        self._launched.append(work)

    def wait(self) -> None:
        """Run everything."""
        while self._launched:
            self._launched.pop(0)()
        super().wait()


def make_late(program: GpuProgram) -> None:
    """From now on let what graphs hold run at the program's waits; other launches run at once."""
    waiter, device = program._waiter, LateDevice()
    waits = waiter.wait

    def wait() -> None:
        device.wait()
        waits()

    waiter.wait = wait  # type: ignore[method-assign]
    program._graphs.run = lambda key, launch: device.launch(launch)  # type: ignore[method-assign]
