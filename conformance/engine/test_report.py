"""A report counts, prints and refuses as the table of equality says."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.engine.report import CAPS, Excuse, Report, table

NEAR = Excuse("request 3, output 5", error=1e-5, bound=3e-5, margin=4e-5)


def report(kv_format: str = "float32", positions: int = 1000, scale: float = 1.0) -> Report:
    errors = np.linspace(1e-6, 1e-5, positions)
    return Report(
        kv_format,
        positions=positions,
        prompts=10,
        crossing=4,
        whole_answers=10,
        whole_tokens=positions,
        widths={1, 2},
        fast_errors=[errors * scale],
        plain_errors=[errors],
        bounds=[np.full(positions, 3e-5)],
    )


def test_equal_runs_pass() -> None:
    assert report().verdict() == []
    assert Report("int8").verdict() == []


@pytest.mark.clause("EXEC-016")
def test_near_ties_are_counted_and_printed_and_anything_else_fails() -> None:
    near = report()
    near.excuses.append(NEAR)
    assert near.verdict() == []
    assert "excuses=1/1 margins=[4.0e-05]" in table([near])
    other = report()
    other.problems.append("request 3, output 5: 7, the reference draws 9")
    assert other.verdict() == ["request 3, output 5: 7, the reference draws 9"]


@pytest.mark.parametrize(("kv_format", "allowed"), [("float32", 10), ("bf16", 400), ("int8", 400)])
def test_excuses_are_capped(kv_format: str, allowed: int) -> None:
    assert CAPS[kv_format] == allowed / 200_000
    long = report(kv_format, positions=200_000)
    long.excuses += [NEAR] * allowed
    assert long.verdict() == []
    long.excuses.append(NEAR)
    assert long.verdict() == [f"{kv_format}: {allowed + 1} excuses, {allowed} allowed"]


@pytest.mark.parametrize(("kv_format", "scale", "problems"), [
    ("float32", 2.9, 0), ("float32", 4.0, 2), ("float32", 12.0, 3), ("int8", 1.4, 0), ("int8", 1.6, 2),
])  # fmt: skip
def test_logits_may_err_as_plain_pytorch_does(kv_format: str, scale: float, problems: int) -> None:
    assert len(report(kv_format, scale=scale).verdict()) == problems


@pytest.mark.parametrize(("kv_format", "allowed"), [("float32", 2), ("bf16", 20), ("int8", 20)])
def test_few_positions_may_lie_outside_the_logits_bound(kv_format: str, allowed: int) -> None:
    one = report(kv_format, positions=2000)
    for outside in (allowed, allowed + 1):
        one.fast_errors[0][:outside] = 1e-4
        problem = f"{kv_format}: {outside} positions outside the logits bound, {allowed} allowed"
        assert (problem in one.verdict()) == (outside > allowed)


def test_with_float32_caches_none_may_lie_far_outside() -> None:
    for kv_format, problems in (("float32", 1), ("int8", 0)):
        one = report(kv_format, positions=2000)
        one.fast_errors[0][7] = 2e-4
        assert len(one.verdict()) == problems


def test_reports_add_up() -> None:
    first, second = report(), report(positions=500)
    second.widths = {8}
    second.excuses.append(NEAR)
    first.merge(second)
    assert (first.positions, first.prompts, first.widths) == (1500, 20, {1, 2, 8})
    assert first.excuses == [NEAR]
    assert sum(map(len, first.fast_errors)) == 1500
    assert "positions=1500" in table([first])
    assert "mean_output=75" in table([first])
