"""Judges answers by the table of equality: every position, teacher-forced along the fast engine's own ids.

At each position three things are asked. Given the fast logits, is the token the one that the sampler draws
(exactly)? Do the fast logits err like plain PyTorch's? Is the token the reference's own, and if not, was the
draw so close that errors inside the bound can turn it? Rounding a KV row and choosing experts are near ties
of their own: a difference behind one is judged by the reference led along the run's choices, each checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from conformance.engine.drive import Answer
from conformance.engine.kv import Stored
from conformance.engine.margins import margin
from conformance.engine.models import Model
from conformance.engine.oracle import Forced, Oracle, Routes
from conformance.engine.recorder import Choice, LaneLog
from conformance.engine.report import CODED, RATIO, RELATIVE, Excuse, Report
from ninfer.sampling.draw import select_token
from tests.support.nano import VOCABULARY

Floats = npt.NDArray[np.floating]
Errors = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """One answer beside the reference: float32 logits as served, and float64 ones to measure both against."""

    answer: Answer
    fast: Floats
    plain: Floats
    exact: Floats
    rerouted: bool

    def where(self, index: int) -> str:
        """Names output ``index``."""
        return f"request {self.answer.request.id}, output {index}"

    @property
    def fast_errors(self) -> Errors:
        """[positions]: the largest error of a logit that may be drawn."""
        return errors_of(self.fast, self.exact)

    @property
    def plain_errors(self) -> Errors:
        """As ``fast_errors``, of PyTorch in float32."""
        return errors_of(self.plain, self.exact)


@dataclass(frozen=True, slots=True, eq=False)
class Turned:
    """A draw that came out otherwise: which output, what was drawn from which logits after which counts."""

    index: int
    drawn: int
    logits: Floats
    counts: Counts


def errors_of(found: Floats, exact: Floats) -> Errors:
    """Largest error [positions] over the ids that may be drawn."""
    return np.abs(found[:, :VOCABULARY] - exact[:, :VOCABULARY].astype(np.float64)).max(1)


class Judge:
    """The reference of one model and KV format."""

    def __init__(self, model: Model, kv_format: str) -> None:
        self._plain, self._exact = (
            Oracle(model, dtype, kv_format) for dtype in (torch.float32, torch.float64)
        )
        self.kv_format = kv_format

    def force(self, answers: Sequence[Answer]) -> list[Judged]:
        """The reference along every answer that has tokens; where experts differ, along their choice too.

        Errors: ``AssertionError`` for a choice of experts outside the router's bound.
        """
        passes = [self._along(answer, answer.log) for answer in answers if answer.tokens]
        bounds = _router_bounds(passes)
        for one in passes:
            one.check_routes(bounds)
        return [one.judged for one in passes]

    def compare(self, judged: Sequence[Judged], chunk: int) -> Report:
        """Every position of the answers, which ran in chunks of ``chunk``."""
        report = Report(self.kv_format)
        # A code that falls to the other side outweighs every rounding: errors are measured along the codes
        # that the run stored, each of which must be a neighbour of the reference's.
        measured = [self.led(one, one.answer.log) if self.kv_format in CODED else one for one in judged]
        for one, along, bounds in zip(judged, measured, bounds_of(measured), strict=True):
            _count(report, one.answer, chunk)
            report.rerouted += one.rerouted
            report.fast_errors.append(along.fast_errors)
            report.plain_errors.append(along.plain_errors)
            report.bounds.append(bounds)
            self._compare(report, one)
        return report

    def _compare(self, report: Report, one: Judged) -> None:
        counts, led = np.zeros(VOCABULARY, np.int32), None
        for index, token in enumerate(one.answer.tokens):
            row = one.fast[index]
            if draw(one, row, index, counts) != token:
                report.problems.append(f"{one.where(index)}: {token} is not what its own logits draw")
            expected = draw(one, one.plain[index], index, counts)
            if expected != token:
                led = led or self.led(one, one.answer.log)
                what = f"{token}, the reference draws {expected}"
                explain(report, one, led, Turned(index, token, row, counts.copy()), what)
            counts[token] += 1

    def led(self, one: Judged, log: LaneLog) -> Judged:
        """The reference along every choice that a run of this answer made between near ties.

        Those are the codes of its KV cache and the experts of its tokens. Errors: ``AssertionError`` for a
        choice that is no near tie.
        """
        if self.kv_format == "float32" and not one.rerouted and log is one.answer.log:
            return one
        along = self._along(one.answer, log, None if self.kv_format == "float32" else log.stored)
        along.check_routes(_router_bounds([along]))
        return along.judged

    def _along(self, answer: Answer, log: LaneLog, stored: Mapping[int, Stored] | None = None) -> _Along:
        """Both precisions along an answer, and along the experts of ``log`` where they are others."""
        prompt = [int(token) for token in answer.request.prompt]
        sequence, first, routes = prompt + answer.tokens[:-1], len(prompt) - 1, log.routes()

        def both(routes: Routes | None) -> tuple[Forced, Forced]:
            plain, exact = (o.forced(sequence, first, routes, stored) for o in (self._plain, self._exact))
            return plain, exact

        if stored is None:
            plain, exact = both(None)
            if all(_goes_along(routes, forced) for forced in (plain, exact)):
                return _Along(answer, routes, plain, exact, False)
        return _Along(answer, routes, *both(routes or None), bool(routes))


@dataclass(frozen=True, slots=True, eq=False)
class _Along:
    """Two passes of the reference along an answer, ``rerouted`` along the run's own choice of experts."""

    answer: Answer
    routes: Routes
    plain: Forced
    exact: Forced
    rerouted: bool

    @property
    def judged(self) -> Judged:
        return Judged(self.answer, self.answer.logits, self.plain.logits, self.exact.logits, self.rerouted)

    def check_routes(self, bounds: Mapping[int, float]) -> None:
        """Wherever the run went elsewhere, it was a near tie. Errors: ``AssertionError`` naming the place."""
        for layer, chosen in self.routes.items():
            scores = self.exact.scores[layer]
            wanted = _top(scores, chosen.shape[1])
            for row in np.flatnonzero((np.sort(chosen, 1) != np.sort(wanted, 1)).any(1)):
                least = scores[row][wanted[row]].min()
                gap = float(least - scores[row][chosen[row]].min())
                assert gap <= 2 * bounds[layer], (
                    f"request {self.answer.request.id}, layer {layer}, token {row}: experts "
                    f"{chosen[row].tolist()}, the reference takes {wanted[row].tolist()} by {gap:.1e}, "
                    f"bound {bounds[layer]:.1e}"
                )


def bounds_of(judged: Sequence[Judged]) -> list[Errors]:
    """The logits bound of every position of every answer.

    Where rows of a cache are rounded by everybody for himself, the error that plain PyTorch shows at one
    position says little about that position; its 99th percentile over all of them does.
    """
    if not judged:
        return []
    plain = np.concatenate([one.plain_errors for one in judged])
    size = np.sqrt(np.mean([np.square(one.exact[:, :VOCABULARY]).mean() for one in judged]))
    least = max(RATIO * np.percentile(plain, 99), RELATIVE * size)
    return [np.maximum(RATIO * one.plain_errors, least) for one in judged]


def _count(report: Report, answer: Answer, chunk: int) -> None:
    request, tokens = answer.request, len(answer.tokens)
    report.positions += tokens
    report.sampled_with_penalties += tokens * request.is_sampled_with_penalties
    report.prompts += 1
    report.crossing += request.crosses(chunk)
    report.widths |= set(answer.log.widths)
    if request.cancel_after is None:
        report.whole_answers += 1
        report.whole_tokens += tokens


def draw(one: Judged, logits: Floats, index: int, counts: Counts) -> int:
    """The token of output ``index`` from these logits."""
    request = one.answer.request
    row = logits[:VOCABULARY].astype(np.float32)
    return select_token(row, request.sampling, counts, len(request.prompt) + index)


def explain(report: Report, one: Judged, led: Judged, turned: Turned, what: str) -> None:
    """A difference: an excuse where error and margin allow it, else a problem.

    ``one`` is the reference by itself, ``led`` along the near ties of the run that drew ``turned``. The run's
    logits must be inside the bound, and the draw so close that errors inside the bound can turn it, unless
    the near ties alone have turned it.
    """
    index, request = turned.index, one.answer.request
    (bounds,) = bounds_of([led])
    (error,), bound = errors_of(turned.logits[None], led.exact[index : index + 1]), float(bounds[index])
    place = len(request.prompt) + index
    own, along = (
        margin(judged.exact[index, :VOCABULARY].astype(np.float64), request.sampling, turned.counts, place)
        for judged in (one, led)
    )
    entry = Excuse(one.where(index), float(error), bound, min(own, along))
    followed = draw(led, led.exact[index], index, turned.counts) == turned.drawn
    if error <= bound and (followed or along <= 2 * bound):
        report.excuses.append(entry)
    else:
        report.problems.append(f"{entry}: {what}")


# --- mixture of experts --------------------------------------------------------------------------------


def same_choice(some: Choice, others: Choice) -> bool:
    """Whether every token went to the same experts, in whatever order."""
    return bool((np.sort(some, 1) == np.sort(others, 1)).all())


def _goes_along(routes: Routes, forced: Forced) -> bool:
    return all(
        same_choice(chosen, _top(forced.scores[layer], chosen.shape[1])) for layer, chosen in routes.items()
    )


def _top(scores: Floats, count: int) -> npt.NDArray[np.int64]:
    return np.argsort(-scores, 1, kind="stable")[:, :count]


def _router_bounds(passes: Sequence[_Along]) -> dict[int, float]:
    """How far a router score may err, by layer.

    The largest error that plain PyTorch shows anywhere: another choice is seen only where errors are largest.
    """
    bounds: dict[int, float] = {}
    for one in passes:
        for layer, scores in one.exact.scores.items():
            error = np.abs(one.plain.scores[layer] - scores).max()
            least = max(RATIO * error, RELATIVE * np.sqrt(np.square(scores).mean()))
            bounds[layer] = max(bounds.get(layer, 0.0), float(least))
    return bounds


# --- the same engine -------------------------------------------------------------------------------------


def assert_same_bits(first: Answer, second: Answer, what: str) -> int:
    """Tokens and logits of the common length agree bit for bit (law 8); returns how many positions."""
    count = min(len(first.tokens), len(second.tokens))
    if first.request.cancel_after is None and second.request.cancel_after is None:
        assert len(first.tokens) == len(second.tokens), (
            f"{what}: request {first.request.id} differs in length"
        )
    if not count:
        return 0
    one, other = (answer.logits[:count].view(np.uint32) for answer in (first, second))
    different = np.flatnonzero((one != other).any(1))
    assert not len(different), (
        f"{what}: request {first.request.id}, logits differ at output {different[0]} "
        f"(round of {_width(first, different[0])} and of {_width(second, different[0])} rows)"
    )
    assert first.tokens[:count] == second.tokens[:count], f"{what}: request {first.request.id}, other tokens"
    return count


def _width(answer: Answer, index: int) -> int:
    return 1 if index == 0 else answer.log.widths[index - 1]
