"""One group of a campaign: a model, a KV format and some requests, served in several ways and compared.

The same requests run in two batches on programs of different lanes, threads and page order and, some of them,
alone: bit for bit the same (law 8). Then the reference is led along every answer, and some are led through
other cut lists.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from conformance.engine.compare import Judge, Judged, assert_same_bits
from conformance.engine.cuts import draw_pieces, replay
from conformance.engine.draws import EngineDraw, ModelDraw, Random, draw_engine, draw_requests, shuffled
from conformance.engine.drive import Answer, disturb, serve
from conformance.engine.models import Model, Shelf
from conformance.engine.planting import Plant
from conformance.engine.recorder import RecordingProgram
from conformance.engine.report import Report
from ninfer.fast.program.program import Program

# Requests of a group that also run alone, and answers that are led through another cut list.
ALONE, LEAST_CUT, CUT_SHARE = 2, 2, 0.25


def _nothing(program: Program) -> None:
    """No fault."""


@dataclass(frozen=True, slots=True)
class Group:
    """What is run together; ``plant`` breaks every program before it is used (``faults.py``)."""

    model: ModelDraw
    kv_format: str
    chunk: int
    requests: int
    plant: Plant = _nothing

    def run(self, shelf: Shelf, random: Random) -> Report:
        """Errors: ``AssertionError`` for what must be bit-identical and is not."""
        model = shelf.model(self.model)
        requests = draw_requests(random, self.requests, self.chunk)
        engines = [draw_engine(random, self.kv_format, self.chunk) for _ in range(2)]
        answers = self._serve(model, engines[0], random, lambda program: serve(program, requests))
        again = self._serve(
            model, engines[1], random, lambda program: serve(program, shuffled(random, requests))
        )
        repeated = self._same(answers, again, "another batch")
        for request in requests[:ALONE]:
            alone = self._serve(model, engines[1], random, lambda program, one=request: serve(program, [one]))
            repeated += self._same(alone, answers, "alone")
        judge = Judge(model, self.kv_format)
        judged = judge.force(list(answers.values()))
        report = judge.compare(judged, self.chunk)
        report.repeated_positions = repeated
        self._replay(model, judge, judged, report, random)
        return report

    def _serve(
        self,
        model: Model,
        engine: EngineDraw,
        random: Random,
        run: Callable[[RecordingProgram], dict[str, Answer]],
    ) -> dict[str, Answer]:
        with closing(model.program(engine)) as program:
            recording = RecordingProgram(program)
            disturb(program, random)
            self.plant(program)
            return run(recording)

    def _same(self, some: dict[str, Answer], others: dict[str, Answer], what: str) -> int:
        return sum(assert_same_bits(answer, others[name], what) for name, answer in some.items())

    def _replay(
        self, model: Model, judge: Judge, judged: list[Judged], report: Report, random: Random
    ) -> None:
        chosen = judged[: max(LEAST_CUT, int(CUT_SHARE * len(judged)))]
        engine = EngineDraw(self.kv_format, 256, lanes=1, pages=16, threads=1)
        with closing(model.program(engine)) as program:
            recording = RecordingProgram(program)
            self.plant(program)
            for one in chosen:
                disturb(program, random)
                prompt = len(one.answer.request.prompt)
                total = prompt + len(one.answer.tokens) - 1
                pieces = draw_pieces(random, prompt, total, engine.chunk)
                replay(report, judge, recording, one, pieces)
