"""The same sequence under another cut list: chunks and single tokens in any mix, on a program of its own.

What a pause with replay, a resume from an endpoint or another ``--prefill-chunk`` will do to a sequence; the
history is forced, so that every position can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from conformance.engine.compare import Judge, Judged, Turned, explain
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


def replay(report: Report, judge: Judge, program: RecordingProgram, one: Judged, pieces: list[Piece]) -> None:
    """Compare what ``pieces`` draw with the answer, at every position that draws."""
    turned = list(_turned(report, program, one, pieces))
    if turned:
        led = judge.led(one, program.opened)
        for turn in turned:
            token = one.answer.tokens[turn.index]
            explain(report, one, led, turn, f"{token}, another cut list draws {turn.drawn}")


def _turned(report: Report, program: RecordingProgram, one: Judged, pieces: list[Piece]) -> Iterator[Turned]:
    request = one.answer.request
    tokens = np.array([*request.prompt, *one.answer.tokens], np.int32)
    prompt, counts = len(request.prompt), np.zeros(VOCABULARY, np.int32)
    sampler = Sampler(request.sampling, counts)
    lane = program.open_lane(len(tokens))
    for begin, end, whole in _steps(pieces):
        np.add.at(counts, tokens[max(prompt, begin) : end], 1)  # drawn already: the next draw counts them
        if whole:
            axes = np.tile(np.arange(begin, end, dtype=np.int32), (3, 1))
            drawn = program.first(lane, program.prefill(lane, tokens[begin:end], axes), sampler)
        else:
            drawn = program.round([Row(lane, int(tokens[begin]), sampler)])[0]
        if end >= prompt:
            report.cut_positions += 1
            if drawn != tokens[end]:
                yield Turned(end - prompt, drawn, program.opened.logits[-1], counts.copy())
    program.close_lane(lane)


def _steps(pieces: list[Piece]) -> Iterator[tuple[int, int, bool]]:
    for piece in pieces:
        if piece.whole:
            yield piece.begin, piece.end, True
        else:
            yield from ((place, place + 1, False) for place in range(piece.begin, piece.end))
