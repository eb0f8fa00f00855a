"""The statistics panel's sums and its table."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.events import DraftUsage
from ninfer.engine.statistics import SchedulerGauges
from ninfer.server.observe.panel import Panel
from tests.server.observe.done import done, failed

IDLE = SchedulerGauges()
NAMES = ("TTFT", "cached", "prefill", "decode", "batch")


def texts(panel: Panel, gauges: SchedulerGauges = IDLE) -> list[str]:
    return [text for text, _ in panel.rows(gauges)]


def cells(panel: Panel, row: int = 2) -> dict[str, str]:
    """Column name → value; values hold a unit behind a space."""
    header, line = texts(panel)[1], texts(panel)[row]
    ends = {name: header.index(name) + len(name) for name in re.findall(r"\S+(?: rnds)?", header)}
    found, begin = {}, 7
    for name, end in sorted(ends.items(), key=lambda entry: entry[1]):
        found[name] = line[begin:end].strip()
        begin = end
    return found


def of(*requests: Any, **options: Any) -> Panel:
    panel = Panel(**options)
    for request in requests:
        panel.add(request)
    return panel


@pytest.mark.clause("PANEL-004")
def test_one_row_up_to_ten_requests_then_two() -> None:
    requests = [done(number, ttft_s=float(number)) for number in range(1, 12)]
    assert len(texts(of(*requests[:10]))) == 3
    panel = of(*requests)
    assert len(texts(panel)) == 4
    assert cells(panel, 2)["TTFT"] == "6.00 s"  # 1..11
    assert cells(panel, 3)["TTFT"] == "6.50 s"  # 2..11
    assert texts(panel)[3].startswith("last 10")


@pytest.mark.clause("PANEL-005")
def test_ttft_is_the_mean() -> None:
    assert cells(of(done(ttft_s=1.0), done(ttft_s=3.0)))["TTFT"] == "2.00 s"


def test_a_request_without_output_has_no_ttft() -> None:
    assert cells(of(done(ttft_s=1.0), done(ttft_s=None, output=0)))["TTFT"] == "1.00 s"
    assert cells(of(done(ttft_s=None, output=0)))["TTFT"] == "-"


@pytest.mark.clause("PANEL-006")
def test_cached_is_a_ratio_of_sums() -> None:
    panel = of(done(prompt=1000), done(prompt=3000, cached=2936))
    assert cells(panel)["cached"] == "73.4%"


@pytest.mark.clause("PANEL-007", "PANEL-016")
def test_prefill_is_computed_tokens_by_seconds() -> None:
    """Large requests weigh more: not the mean of two rates."""
    panel = of(done(prompt=1000, prefill_s=1.0), done(prompt=100, prefill_s=0.9))
    assert cells(panel)["prefill"] == "579 tok/s"


@pytest.mark.clause("PANEL-008")
def test_decode_of_concurrent_requests_adds_up() -> None:
    """Two streams of 50 tok/s for two seconds, every round shared by both."""
    panel = of(*[done(output=101, decode_s=2.0, share_s=1.0)] * 2)
    assert cells(panel)["decode"] == "100 tok/s"
    assert cells(panel)["batch"] == "2.00"


@pytest.mark.clause("PANEL-009")
def test_batch_weighs_rounds_by_their_time() -> None:
    """One second alone, then three seconds of both: 1.75, and decode by it is one stream's rate."""
    both = 3.0
    panel = of(
        done(output=41, decode_s=1.0 + both, share_s=1.0 + both / 2),
        done(output=31, decode_s=both, share_s=both / 2),
    )
    assert cells(panel)["batch"] == "1.75"
    assert cells(panel)["decode"] == "17.5 tok/s"  # 70 tokens in 4 s of rounds


@pytest.mark.clause("PANEL-017")
def test_the_title_counts_outcomes() -> None:
    panel = of(done(), failed(), done(reason="cancelled"), load=False)
    panel.count("rejected")
    title = texts(panel)[0]
    assert title.startswith("1 completed, 1 failed, 1 cancelled, 1 rejected")
    assert len(texts(panel)) == 3


@pytest.mark.clause("PANEL-018")
def test_the_title_tells_the_load_while_intervals_are_reported() -> None:
    gauges = SchedulerGauges(running=1, waiting=1)
    assert "1 running 1 waiting" in texts(of(load=True), gauges)[0].replace(",", "")
    assert "running" not in texts(of(load=False), gauges)[0]


COUNTS = st.integers(0, 10**6)


@pytest.mark.clause("PANEL-013")
@given(COUNTS, COUNTS, COUNTS, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), COUNTS)
def test_the_table_is_66_columns_wide(
    prompt: int, output: int, cached: int, ttft_s: float, prefill_s: float, decode_s: float, many: int
) -> None:
    """Whatever the figures: nothing runs into its neighbour, the longest row is the table's width."""
    request = done(
        prompt=prompt + cached,
        cached=cached,
        output=output,
        ttft_s=ttft_s,
        prefill_s=prefill_s,
        decode_s=decode_s,
    )
    for backend in (None, "MTP", "DFlash2"):
        panel = of(request, backend=backend)
        for _ in range(2):
            panel._outcomes["cancelled"] = many
            widths = [len(line) for line in texts(panel)]
            assert max(widths) == 66
        assert list(cells(panel))[:5] == list(NAMES)
        assert all(cells(panel).values())


def test_the_drafters_columns_leave_copies_out() -> None:
    draft = DraftUsage(
        "mtp",
        3,
        rounds=10,
        drafted_tokens=45,
        accepted_tokens=25,
        ngram_rounds=2,
        ngram_drafted_tokens=21,
        ngram_accepted_tokens=13,
    )
    found = cells(of(done(draft=draft), backend="MTP", ngram=True))
    assert (found["MTP"], found["acc/rnd"]) == ("50.0%", "1.50")
    assert (found["ngram"], found["ng rnds"]) == ("61.9%", "2")
    assert max(map(len, texts(of(done(draft=draft), backend="MTP", ngram=True)))) == 84
