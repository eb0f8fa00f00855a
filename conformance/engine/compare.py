"""Judges answers by the table of equality: every position, teacher-forced along the fast engine's own ids.

At each position three things are asked. Given the fast logits, is the token the one that the sampler draws
(exactly)? Do the fast logits err like plain PyTorch's? Is the token the reference's own, and if not, was the
draw so close that errors inside the bound can turn it?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from conformance.engine.drive import Answer
from conformance.engine.margins import margin
from conformance.engine.models import Model
from conformance.engine.oracle import Forced, Oracle, Routes
from conformance.engine.recorder import Choice
from conformance.engine.report import RATIO, RELATIVE, Excuse, Report
from ninfer.sampling.draw import select_token
from tests.support.nano import VOCABULARY

Floats = npt.NDArray[np.floating]
Errors = npt.NDArray[np.float64]


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
        self._router_bounds: dict[int, float] = {}

    def compare(self, judged: Sequence[Judged], chunk: int) -> Report:
        """Every position of the answers, which ran in chunks of ``chunk``."""
        report = Report(self.kv_format)
        for one, bounds in zip(judged, bounds_of(judged), strict=True):
            _count(report, one.answer, chunk)
            report.rerouted += one.rerouted
            report.fast_errors.append(one.fast_errors)
            report.plain_errors.append(one.plain_errors)
            report.bounds.append(bounds)
            _judge(report, one, bounds)
        return report

    def force(self, answers: Sequence[Answer]) -> list[Judged]:
        """The reference along every answer that has tokens; where experts differ, along their choice too.

        Errors: ``AssertionError`` for a choice of experts outside the router's bound.
        """
        passes = [(answer, *self._passes(answer)) for answer in answers if answer.tokens]
        self._router_bounds = _router_bounds([(plain, exact) for _, plain, exact in passes])
        return [self._judged(answer, plain, exact) for answer, plain, exact in passes]

    def exact_along(self, answer: Answer, routes: Routes) -> Floats:
        """Float64 logits of an answer along another choice of experts, which must be a near tie as well."""
        _, exact = self._passes(answer)
        _check_routes(answer, routes, exact, self._router_bounds)
        return self._passes(answer, routes)[1].logits

    def _judged(self, answer: Answer, plain: Forced, exact: Forced) -> Judged:
        routes = answer.routes
        rerouted = not all(_goes_along(routes, forced) for forced in (plain, exact))
        if rerouted:
            _check_routes(answer, routes, exact, self._router_bounds)
            plain, exact = self._passes(answer, routes)
        return Judged(answer, answer.logits, plain.logits, exact.logits, rerouted)

    def _passes(self, answer: Answer, routes: Routes | None = None) -> tuple[Forced, Forced]:
        prompt = [int(token) for token in answer.request.prompt]
        sequence, first = prompt + answer.tokens[:-1], len(prompt) - 1
        plain, exact = (oracle.forced(sequence, first, routes) for oracle in (self._plain, self._exact))
        return plain, exact


def bounds_of(judged: Sequence[Judged]) -> list[Errors]:
    """The logits bound of every position of every answer.

    Rounding to a KV format falls on either side at places of its own in every engine, so the error that plain
    PyTorch shows at one position says little about that position; its 99th percentile over all of them does.
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
    report.answers += 1
    report.widths |= set(answer.log.widths)
    if request.cancel_after is None:
        report.whole_answers += 1
        report.whole_tokens += tokens


def _judge(report: Report, one: Judged, bounds: Errors) -> None:
    counts = np.zeros(VOCABULARY, np.int32)
    for index, token in enumerate(one.answer.tokens):
        if draw(one, one.fast[index], index, counts) != token:
            report.problems.append(f"{one.where(index)}: {token} is not what its own logits draw")
        expected = draw(one, one.plain[index], index, counts)
        if expected != token:
            error = float(one.fast_errors[index])
            excuse(report, one, index, counts, error, float(bounds[index]), f"the reference draws {expected}")
        counts[token] += 1


def draw(one: Judged, logits: Floats, index: int, counts: npt.NDArray[np.int32]) -> int:
    """The token of output ``index`` from these logits."""
    request = one.answer.request
    row = logits[:VOCABULARY].astype(np.float32)
    return select_token(row, request.sampling, counts, len(request.prompt) + index)


def excuse(
    report: Report,
    one: Judged,
    index: int,
    counts: npt.NDArray[np.int32],
    error: float,
    bound: float,
    what: str,
) -> None:
    """Another token at output ``index``: an excuse where error and margin allow it, else a problem."""
    request = one.answer.request
    exact = one.exact[index, :VOCABULARY].astype(np.float64)
    close = margin(exact, request.sampling, counts, len(request.prompt) + index)
    entry = Excuse(one.where(index), error, bound, close)
    if error <= bound and close <= 2 * bound:
        report.excuses.append(entry)
    else:
        report.problems.append(f"{entry}: {what}, not {one.answer.tokens[index]}")


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


def _router_bounds(passes: Sequence[tuple[Forced, Forced]]) -> dict[int, float]:
    """How far a router score may err, by layer.

    The largest error that plain PyTorch shows anywhere: another choice is seen only where errors are largest.
    """
    bounds: dict[int, float] = {}
    for plain, exact in passes:
        for layer, scores in exact.scores.items():
            error = np.abs(plain.scores[layer] - scores).max()
            least = max(RATIO * error, RELATIVE * np.sqrt(np.square(scores).mean()))
            bounds[layer] = max(bounds.get(layer, 0.0), float(least))
    return bounds


def _check_routes(answer: Answer, routes: Routes, exact: Forced, bounds: dict[int, float]) -> None:
    """The first place where the choice differs must be a near tie; what follows may come from it."""
    for layer in sorted(routes):
        chosen, scores = routes[layer], exact.scores[layer]
        wanted = _top(scores, chosen.shape[1])
        different = np.flatnonzero((np.sort(chosen, 1) != np.sort(wanted, 1)).any(1))
        if not len(different):
            continue
        row = different[0]
        ranked = np.sort(scores[row])[::-1]
        worst = float(ranked[chosen.shape[1] - 1] - scores[row][chosen[row]].min())
        assert worst <= 2 * bounds[layer], (
            f"request {answer.request.id}, layer {layer}, token {row}: experts {chosen[row].tolist()}, "
            f"the reference takes {wanted[row].tolist()} by {worst:.1e}, bound {bounds[layer]:.1e}"
        )
        return


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
