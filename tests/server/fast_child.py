"""``python -m tests.server.fast_child FD``: the engine process, with a fast engine that has a bug.

Its scheduler raises what no unit contains, as soon as two requests wait. Until then no stop token ends an
answer.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ninfer.engine import child
from ninfer.engine.events import EngineEvent
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.settings import EngineSettings
from ninfer.fast import start
from ninfer.fast.engine import FastWorker
from ninfer.fast.schedule.scheduler import Cycle, Scheduler


class BuggyScheduler(Scheduler):
    """Loses a ticket."""

    def next(self) -> Cycle:
        if len(self.waiting) == 2:
            raise KeyError("a lost ticket")
        return super().next()


class EndlessWorker(FastWorker):
    """Ignores stop tokens."""

    def submit(self, request: GenerationRequest) -> None:
        super().submit(msgspec.structs.replace(request, ignore_stop_tokens=True))


def open_worker(
    settings: EngineSettings, listener: Callable[[int, int], None], publish: Callable[[EngineEvent], None]
) -> FastWorker:
    worker = start.open_worker(settings, listener, publish)
    worker.__class__ = EndlessWorker
    worker._scheduler = worker._residents.scheduler = BuggyScheduler(worker._scheduler.lanes)
    return worker


if __name__ == "__main__":
    child.WORKERS["fast"] = "tests.server.fast_child"
    child.main()
