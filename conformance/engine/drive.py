"""Serves drawn requests through the real worker over a real program, on the caller's own thread.

One cycle of the worker is one tick: requests arrive and are cancelled between cycles, so that the same draw
gives the same order of work everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from conformance.engine.draws import Random, RequestDraw
from conformance.engine.recorder import Choice, LaneLog, RecordingProgram
from ninfer.engine.events import Delta, EngineEvent, Failed, Finished, LogRecord, Started
from ninfer.fast.engine import FastWorker
from ninfer.fast.program.program import Program

# Cycles after which a run that has not ended never will.
_PATIENCE = 200_000


@dataclass(slots=True, eq=False)
class Answer:
    """What one request got: its tokens, what lies behind them, and how it ended."""

    request: RequestDraw
    tokens: list[int] = field(default_factory=list)
    log: LaneLog = field(default_factory=LaneLog)
    end: Finished | Failed | None = None

    @property
    def logits(self) -> npt.NDArray[np.float32]:
        """[tokens, vocabulary rows]."""
        return np.stack(self.log.logits)

    @property
    def routes(self) -> dict[int, Choice]:
        return self.log.routes()


class _Service:
    """One run of the worker over some requests."""

    def __init__(self, program: RecordingProgram, requests: Sequence[RequestDraw]) -> None:
        self._program = program
        self.answers = {request.id: Answer(request) for request in requests}
        self._cancelling = [a for a in self.answers.values() if a.request.cancel_after is not None]
        self.records: list[str] = []
        self.worker = FastWorker(program, lambda token: b"x", self._publish)  # type: ignore[arg-type]

    def _publish(self, event: EngineEvent) -> None:
        if isinstance(event, LogRecord) and event.level != "debug":
            self.records.append(event.message)
        elif isinstance(event, Started):
            self.answers[event.id].log = self._program.opened
        elif isinstance(event, Delta):
            self.answers[event.id].tokens += event.token_ids
        elif isinstance(event, Finished | Failed):
            assert self.answers[event.id].end is None, f"request {event.id} ended twice"
            self.answers[event.id].end = event

    def cancel_due(self) -> None:
        self._cancelling = [answer for answer in self._cancelling if answer.end is None]
        for answer in self._cancelling:
            assert answer.request.cancel_after is not None
            if len(answer.tokens) >= answer.request.cancel_after:
                self.worker.cancel(answer.request.id)


def serve(
    program: RecordingProgram, requests: Sequence[RequestDraw], quiet: bool = True
) -> dict[str, Answer]:
    """The answers by request id, every one of them ended; the program is idle and whole afterwards.

    ``quiet``: the worker may not have logged anything.
    """
    service = _Service(program, requests)
    coming = sorted(requests, key=lambda request: request.arrives)
    for cycle in range(_PATIENCE):
        while coming and coming[0].arrives <= cycle:
            service.worker.submit(coming.pop(0).generation)
        service.worker.step()
        service.cancel_due()
        if not coming and service.worker.idle:
            break
    assert all(answer.end is not None for answer in service.answers.values()), "a request never ended"
    assert not (quiet and service.records), service.records
    program.check_integrity()
    return service.answers


def disturb(program: Program, random: Random, stale: bool = False) -> None:
    """Hand out pages and slots in another order from now on, full of what must never be read.

    ``stale``: of values that others might have left, instead of ones that no sum survives. Only while idle.
    """
    program.check_integrity()
    random.shuffle(program.states._free)
    states = program.states._memory
    states[:] = 0xFF  # NaN in every float
    if stale:
        for slot in range(program.states.slots):
            image = program.states.image(slot).view(np.float32)
            image[:] = random.normal(0, 0.1, image.size)
    if program.pages is None:
        return
    random.shuffle(program.pages._free)
    for pool in program.pages.layers.values():
        for plane in (pool.keys, pool.values, pool.key_scales, pool.value_scales):
            plane.view(np.uint8)[:] = 0x7F if plane.dtype == np.int8 else 0xFF
            if stale and plane.dtype in (np.float32, np.float16):
                plane[:] = random.normal(0, 1, plane.shape) / (1 if plane.dtype == np.float32 else 100)
            elif stale:
                # Codes, or bf16 keys whose exponents are near 1 and fp16 values likewise.
                plane[:] = random.integers(0x3C00, 0x3F80, plane.shape) if plane.dtype == np.uint16 else 64
