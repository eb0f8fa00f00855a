"""Host time between rounds: which gaps count, and what is said of them."""

from __future__ import annotations

from ninfer.fast.schedule.gaps import ROUNDS, RoundGaps
from tests.fast.fake_program import Bench, Call, FakeProgram


def test_a_line_for_every_thousand_gaps() -> None:
    lines: list[str] = []
    gaps, at = RoundGaps(lines.append), 0.0
    for number in range(2 * ROUNDS + 1):
        at += number * 1e-6  # the gap before round ``number``; the first one has none
        gaps.note(at, at + 0.5)
        at += 0.5
    # Gaps of 1..1000 and of 1001..2000 microseconds.
    assert lines == [
        "round_gap_us p50=501 p95=951 max=1000 rounds=1000",
        "round_gap_us p50=1501 p95=1951 max=2000 rounds=1000",
    ]


def test_what_comes_between_is_no_gap() -> None:
    lines: list[str] = []
    gaps = RoundGaps(lines.append)
    for number in range(2 * ROUNDS):
        if number % 2 == 0:
            gaps.pause()
        gaps.note(2.0 * number, 2.0 * number + 1.0)
    assert lines == ["round_gap_us p50=1000000 p95=1000000 max=1000000 rounds=1000"]


class TimedProgram(FakeProgram):
    """Every round takes a second and comes nine after the last one; a prompt takes a thousand."""

    now = 0.0

    def _call(self, call: Call) -> None:
        super()._call(call)
        if call.kind == "prefill":
            self.now += 1000.0
        if call.kind == "round":
            self.last_unit = (self.now + 9.0, self.now + 10.0)
            self.now += 10.0


def test_the_worker_counts_neither_prompts_nor_what_it_waited() -> None:
    bench = Bench(max_context=2 * ROUNDS, pages=100)
    bench.program.__class__ = TimedProgram
    for number in range(3):
        bench.submit(number, prompt=100, max_tokens=ROUNDS // 2 + 100)
    bench.run(2 * ROUNDS)
    assert bench.records == ["round_gap_us p50=9000000 p95=9000000 max=9000000 rounds=1000"]
