"""``GET /metrics``: the families of ``spec/metrics.yaml`` from the engine's snapshot and the server's counts.

Owns the counts of requests and the making of samples. A scrape copies published values and formats them on
the server's side: it asks nothing of the engine and resets nothing. Which families exist, and every label
value, stands in the spec, so all are there before the first request and none is ever added.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ninfer import spec
from ninfer.engine.interface import EngineHost
from ninfer.engine.request_work import SchedulingTransition
from ninfer.engine.statistics import EngineStatistics
from ninfer.server.observe.records import Done, PreparedRequest, Rejected, Terminal


@dataclass(frozen=True, slots=True)
class Identity:
    """Facts of the start that become samples; ``labels`` are those of ``ninfer_model_info``."""

    labels: Mapping[str, str]
    max_concurrency: int
    max_context: int


class Histogram:
    """Observations in seconds under fixed upper bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        place = next((i for i, bound in enumerate(self._bounds) if value <= bound), len(self._bounds))
        self._counts[place] += 1
        self._sum += value

    def samples(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative buckets, the last one +Inf, and the sum."""
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append((_bound(bound), float(total)))
        return buckets, self._sum


class RequestCounts:
    """A sink that counts requests and their times; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: Counter[str] = Counter()
        self._histograms = {
            row["source"].removeprefix("requests."): Histogram(_document()["buckets"][row["buckets"]])
            for row in _document()["families"]
            if row["type"] == "histogram"
        }

    def started(self, request: PreparedRequest) -> None:
        pass

    def first_token(self, request: PreparedRequest, ttft_s: float) -> None:
        self._observe("ttft", ttft_s)

    def rejected(self, rejected: Rejected) -> None:
        self._add("rejected")

    def ended(self, terminal: Terminal) -> None:
        """Durations of settled generations, cancelled ones included; failures are only counted."""
        self._add(terminal.outcome)
        if terminal.outcome != "failed":
            queue_s = terminal.work.queue_s if isinstance(terminal, Done) else terminal.queue_s
            self._observe("duration", terminal.total_s)
            self._observe("queue", queue_s)

    def scheduling(self, request: PreparedRequest, transition: SchedulingTransition) -> None:
        pass

    def response_failed(self, request: PreparedRequest) -> None:
        self._add("response_failures")

    def _add(self, name: str) -> None:
        with self._lock:
            self._counters[name] += 1

    def _observe(self, name: str, value: float) -> None:
        with self._lock:
            self._histograms[name].observe(value)

    def read(self) -> tuple[Mapping[str, float], Mapping[str, tuple[list[tuple[str, float]], float]]]:
        """Counters and histogram samples of one moment."""
        with self._lock:
            histograms = {name: histogram.samples() for name, histogram in self._histograms.items()}
            return dict(self._counters), histograms


class Metrics:
    """Every family as Prometheus text."""

    def __init__(self, host: EngineHost, identity: Identity, counts: RequestCounts) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Families(host, identity, counts))

    def render(self) -> bytes:
        """The exposition of now; ``content_type()`` says its type."""
        return generate_latest(self._registry)


def content_type() -> str:
    value: str = _document()["content_type"]
    return value


class _Families(Collector):
    """Makes one sample per row and label combination of the spec."""

    def __init__(self, host: EngineHost, identity: Identity, counts: RequestCounts) -> None:
        self._host = host
        self._identity = identity
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        statistics = self._host.statistics
        counters, histograms = self._counts.read()
        value = functools.partial(self._value, statistics, counters)
        for row in _document()["families"]:
            if row["type"] == "histogram":
                buckets, total = histograms[row["source"].removeprefix("requests.")]
                yield HistogramMetricFamily(row["name"], row["help"], buckets=buckets, sum_value=total)
            else:
                yield self._family(row, value)

    def _family(self, row: Mapping[str, Any], value: Callable[[str], float]) -> Metric:
        kind = CounterMetricFamily if row["type"] == "counter" else GaugeMetricFamily
        if "free_labels" in row:
            names = row["free_labels"]
            family = kind(row["name"], row["help"], labels=names)
            family.add_metric([self._identity.labels[name] for name in names], value(row["source"]))
        elif "labels" in row:
            family = kind(row["name"], row["help"], labels=list(row["labels"]))
            for values in product(*row["labels"].values()):
                family.add_metric(values, value(row["sources"][" ".join(values)]))
        else:
            family = kind(row["name"], row["help"], value=value(row["source"]))
        return family

    def _value(self, statistics: EngineStatistics, counters: Mapping[str, float], source: str) -> float:
        root, _, path = source.partition(".")
        if root == "requests":
            return float(counters.get(path, 0))
        if root == "model":
            return self._of_model(path)
        found: Any = statistics
        for name in path.split("."):
            found = getattr(found, name)
        return float(found)

    def _of_model(self, name: str) -> float:
        if name == "ready":
            return float(self._host.available)
        if name == "info":
            return 1.0
        return float(getattr(self._identity, name))


def _bound(bound: float) -> str:
    """A bucket's bound as Prometheus writes numbers."""
    return "+Inf" if bound == float("inf") else repr(float(bound))


def _document() -> Any:
    return spec.document("metrics")
