"""From outcomes to figures: rates of one repetition, mean and spread of a test, memory of this process.

Owns the definitions of every number that ``ninfer-bench`` prints.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ninfer.artifact import WeightSummary
from ninfer.cli.bench_engine import Load, Outcome
from ninfer.cli.bench_plan import BenchTest
from ninfer.engine.events import DraftUsage
from ninfer.engine.settings import EngineSettings

DRAFT_COUNTERS = (
    "rounds",
    "drafted_tokens",
    "accepted_tokens",
    "fallback_steps",
    "ngram_rounds",
    "ngram_drafted_tokens",
    "ngram_accepted_tokens",
)


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """One request in seconds since its batch was submitted, and its decoded tokens by then.

    ``began``: it left the queue; ``first``, ``last``: its first and last token was committed.
    """

    prompt_tokens: int
    output_tokens: int
    began: float
    first: float
    last: float
    arrivals: tuple[tuple[float, int], ...]
    draft: DraftUsage | None = None
    cached_tokens: int = 0

    def decoded_after(self, time: float) -> int:
        """Tokens committed after ``time``, the first one (which prefill gives) never among them."""
        published = max((count for at, count in self.arrivals if at <= time), default=0)
        return self.output_tokens - max(published, 1)


@dataclass(frozen=True, slots=True)
class Repetition:
    """The requests of one batch and the three rates in tokens per second; None: nothing was counted.

    Prefill: prompt tokens from the first request's start to the last one's first token. Decode: tokens from
    there to the last token, so that all requests decode at once. Output: every output token, over the whole
    time from submission.
    """

    requests: tuple[RequestTimes, ...]

    @property
    def prefill_s(self) -> float:
        return self._all_first - min(request.began for request in self.requests)

    @property
    def decode_s(self) -> float:
        return self.total_s - self._all_first

    @property
    def total_s(self) -> float:
        return max(request.last for request in self.requests)

    @property
    def prefill_rate(self) -> float | None:
        return _rate(sum(request.prompt_tokens for request in self.requests), self.prefill_s)

    @property
    def decode_rate(self) -> float | None:
        return _rate(sum(request.decoded_after(self._all_first) for request in self.requests), self.decode_s)

    @property
    def output_rate(self) -> float | None:
        return _rate(sum(request.output_tokens for request in self.requests), self.total_s)

    @property
    def _all_first(self) -> float:
        return max(request.first for request in self.requests)


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and sample standard deviation (0 for one value)."""

    mean: float
    deviation: float


class TestResult:
    """The measured repetitions of one test."""

    __test__ = False  # not a test case of pytest

    def __init__(self, test: BenchTest, concurrency: int, batches: Iterable[Sequence[Outcome]]) -> None:
        self.test, self.concurrency = test, concurrency
        self.repetitions = [repetition(batch) for batch in batches]

    @property
    def prefill(self) -> Spread | None:
        # A one-token prompt says nothing about prefill.
        return spread(r.prefill_rate for r in self.repetitions) if self.test.prompt_tokens > 1 else None

    @property
    def decode(self) -> Spread | None:
        return spread(r.decode_rate for r in self.repetitions) if self.test.output_tokens > 1 else None

    @property
    def output(self) -> Spread | None:
        return spread(r.output_rate for r in self.repetitions)

    @property
    def drafts(self) -> dict[str, int] | None:
        """Draft counters over all requests of all repetitions; None without a drafter."""
        usages = [r.draft for repetition in self.repetitions for r in repetition.requests if r.draft]
        if not usages:
            return None
        return {name: sum(getattr(usage, name) for usage in usages) for name in DRAFT_COUNTERS}

    @property
    def prefilled(self) -> tuple[int, int]:
        """Prompt tokens computed and reused, over all requests of all repetitions."""
        requests = [request for repetition in self.repetitions for request in repetition.requests]
        reused = sum(request.cached_tokens for request in requests)
        return sum(request.prompt_tokens for request in requests) - reused, reused

    @property
    def time_to_first_token(self) -> Spread | None:
        """Over all requests of all repetitions, in seconds."""
        return spread(request.first for r in self.repetitions for request in r.requests)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything one run of the program found out."""

    model: str
    weights: WeightSummary
    settings: EngineSettings
    load: Load
    results: Sequence[TestResult]


def repetition(batch: Sequence[Outcome]) -> Repetition:
    """One batch's times, counted from the moment its first request was submitted."""
    start = min(outcome.submitted_at for outcome in batch)
    return Repetition(tuple(_times(outcome, start) for outcome in batch))


def _times(outcome: Outcome, start: float) -> RequestTimes:
    usage = outcome.usage
    assert usage is not None, "only finished requests are measured"
    first = outcome.submitted_at - start + usage.time_to_first_token_s
    return RequestTimes(
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        began=first - usage.prefill_s,
        first=first,
        last=first + usage.decode_s,
        arrivals=tuple((at - start, count) for at, count in outcome.arrivals),
        draft=usage.draft,
        cached_tokens=usage.cached_tokens,
    )


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean and deviation of what is there; None of nothing."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0)


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens and seconds > 0 else None


def process_memory() -> dict[str, int]:
    """This process's resident and highest resident bytes; empty where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    found = {"resident_bytes": "VmRSS", "peak_resident_bytes": "VmHWM"}
    sizes = {key: re.search(rf"^{name}:\s*(\d+) kB", status, re.MULTILINE) for key, name in found.items()}
    return {key: 1024 * int(match[1]) for key, match in sizes.items() if match is not None}
