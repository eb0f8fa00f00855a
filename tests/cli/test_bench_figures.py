"""Rates by hand: what counts as prefill and decode where several requests run at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.cli.bench_engine import Outcome, read_ledger
from ninfer.cli.bench_figures import Repetition, repetition, spread
from ninfer.cli.bench_plan import read_prompts
from ninfer.engine.events import Usage


def outcome(
    submitted: float, began: float, first: float, ends: list[float], prompt: int = 10, held: int = 0
) -> Outcome:
    """A request whose first token came at ``first`` and the others at ``ends``; ``held`` come late."""
    times = [first, *ends]
    usage = Usage(
        prompt_tokens=prompt,
        cached_tokens=0,
        completion_tokens=len(times),
        reasoning_tokens=0,
        prefill_s=first - began,
        decode_s=times[-1] - first,
        time_to_first_token_s=first - submitted,
    )
    arrivals = [(at, count - held) for count, at in enumerate(times, 1) if count > held]
    return Outcome(submitted, usage, None, arrivals)


def test_one_request() -> None:
    measured = repetition([outcome(100.0, 100.5, 102.5, [103.0, 103.5, 104.5])])
    assert measured.prefill_rate == pytest.approx(10 / 2.0)
    assert measured.decode_rate == pytest.approx(3 / 2.0)
    assert measured.output_rate == pytest.approx(4 / 4.5)


def test_decoding_is_counted_from_where_all_decode() -> None:
    """The first request decodes twice while the second one's prompt is taken in: that is not counted."""
    early = outcome(10.0, 10.0, 11.0, [12.0, 14.0, 17.0, 18.0])
    late = outcome(10.0, 11.0, 15.0, [17.0, 18.0, 19.0])
    measured = repetition([early, late])
    assert measured.prefill_rate == pytest.approx(20 / 5.0)
    assert measured.decode_rate == pytest.approx((2 + 3) / 4.0)
    assert measured.output_rate == pytest.approx(9 / 9.0)


def test_a_finished_request_adds_nothing_later() -> None:
    short = outcome(0.0, 0.0, 1.0, [1.5])
    long = outcome(0.0, 1.5, 2.0, [3.0, 4.0])
    assert repetition([short, long]).decode_rate == pytest.approx(2 / 2.0)


def test_one_token_has_no_decode_rate() -> None:
    assert repetition([outcome(0.0, 0.0, 1.0, [])]).decode_rate is None


def test_text_that_comes_late_is_still_decoded_later() -> None:
    """A first token whose text is not whole yet is the prompt's all the same."""
    assert repetition([outcome(0.0, 0.0, 1.0, [2.0, 3.0], held=1)]).decode_rate == pytest.approx(2 / 2.0)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=8))
def test_equal_rounds_give_the_equal_rate(plan: list[tuple[int, int, int]]) -> None:
    """Rounds of a second each: every open request decodes one token a second."""
    outcomes, at = [], 0.0
    starts = []
    for _, _, prefill in plan:
        at += prefill
        starts.append(at)
    for (prompt, extra, prefill), first in zip(plan, starts, strict=True):
        ends = [first + second for second in range(1, int(at - first) + extra + 1)]
        outcomes.append(outcome(0.0, first - prefill, first, ends, prompt))
    measured: Repetition = repetition(outcomes)
    most = max(extra for _, extra, _ in plan)
    expected = sum(extra for _, extra, _ in plan) / most if most else None
    assert measured.decode_rate == (None if expected is None else pytest.approx(expected))
    assert measured.prefill_rate == pytest.approx(sum(prompt for prompt, _, _ in plan) / at)


def test_spread() -> None:
    found = spread([2.0, None, 4.0, 6.0])
    assert found is not None
    assert (found.mean, found.deviation) == (4.0, 2.0)
    assert spread([None]) is None
    single = spread([3.0])
    assert single is not None
    assert single.deviation == 0.0


def test_the_engine_s_ledger_is_read_and_other_lines_are_not() -> None:
    assert read_ledger("memory_mib weights=14.1 kv=0.2") == {"weights": 14.1, "kv": 0.2}
    assert read_ledger("compiling kernels: 5 s") == {}


@given(st.integers(1, 2000), st.integers(1, 40), st.integers(2, 500))
def test_generated_prompts_lie_in_the_vocabulary(count: int, cuts: int, vocabulary: int) -> None:
    prompts = read_prompts(None, vocabulary, 1).cuts(count)
    for _ in range(cuts):
        ids = next(prompts)
        assert len(ids) == count
        assert 0 <= ids.min() <= ids.max() < vocabulary
