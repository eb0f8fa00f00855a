"""The same sequence under another cut list: chunks and single tokens in any mix, on a program of its own.

What a pause with replay, a resume from an endpoint or another ``--prefill-chunk`` will do to a sequence; the
history is forced, so that every position can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conformance.engine.compare import Judged, errors_of, excuse
from conformance.engine.draws import PAGE, Random
from conformance.engine.recorder import RecordingProgram
from conformance.engine.report import Report
from ninfer.fast.program.program import Row, Sampler
from tests.support.nano import VOCABULARY


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens ``begin..end`` of the sequence, as one chunk or one by one."""

    begin: int
    end: int
    whole: bool


def draw_pieces(random: Random, prompt: int, total: int, chunk: int) -> list[Piece]:
    """A cut list over ``total`` tokens, the first ``prompt`` of which were the prompt."""
    pieces, place = [], 0
    while place < total:
        whole = random.random() < (0.85 if place < prompt else 0.15)
        if not whole:
            size = int(random.integers(1, 40))
        elif random.random() < 0.7 and place < prompt:
            size = PAGE * int(random.integers(1, chunk // PAGE + 1)) - place % PAGE
        else:  # wherever a resume happens to begin
            size = int(random.integers(1, chunk + 1 if place < prompt else 16))
        # Chunks end with the prompt or a little behind it: inside them nothing is drawn.
        limit = prompt + max(0, int(random.integers(-16, 16))) if place < prompt else total
        end = min(total, place + size, limit)
        pieces.append(Piece(place, end, whole))
        place = end
    return pieces


def replay(
    report: Report, program: RecordingProgram, one: Judged, bounds: np.ndarray, pieces: list[Piece]
) -> None:
    """Compare what ``pieces`` draw with the answer, at every position that draws."""
    tokens = np.array([*one.answer.request.prompt, *one.answer.tokens], np.int32)
    prompt, counts = len(one.answer.request.prompt), np.zeros(VOCABULARY, np.int32)
    sampler = Sampler(one.answer.request.sampling, counts)
    lane = program.open_lane(len(tokens))
    for piece in pieces:
        steps = [(piece.begin, piece.end)]
        if not piece.whole:
            steps = [(place, place + 1) for place in range(piece.begin, piece.end)]
        for begin, end in steps:
            known = tokens[max(prompt, begin) : end]  # drawn already: the next draw counts them
            np.add.at(counts, known, 1)
            if piece.whole:
                axes = np.tile(np.arange(begin, end, dtype=np.int32), (3, 1))
                drawn = program.first(lane, program.prefill(lane, tokens[begin:end], axes), sampler)
            else:
                drawn = program.round([Row(lane, int(tokens[begin]), sampler)])[0]
            if end >= prompt:
                _judge(report, program, one, bounds, end - prompt, drawn, counts)
    program.close_lane(lane)


def _judge(
    report: Report,
    program: RecordingProgram,
    one: Judged,
    bounds: np.ndarray,
    index: int,
    drawn: int,
    counts: np.ndarray,
) -> None:
    report.cut_positions += 1
    if drawn == one.answer.tokens[index]:
        return
    logits = program.opened.logits[-1]
    error = max(one.fast_errors[index], errors_of(logits[None], one.exact[index : index + 1])[0])
    excuse(report, one, index, counts, float(error), float(bounds[index]), f"another cut list draws {drawn}")
