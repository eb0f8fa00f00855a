"""Reads ``GET /metrics`` with the official parser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from conformance.http.client import Client

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Scrape:
    """One exposition: samples by name and labels, and each family's type."""

    text: str
    samples: Mapping[tuple[str, Labels], float]
    types: Mapping[str, str]

    def value(self, name: str, **labels: str) -> float:
        return self.samples[(name, tuple(sorted(labels.items())))]

    def __getitem__(self, name: str) -> float:
        """An unlabelled sample, without the common prefix."""
        return self.value(f"ninfer_{name}")

    def outcome(self, name: str) -> float:
        return self.value("ninfer_requests_total", outcome=name)

    @property
    def counters(self) -> dict[tuple[str, Labels], float]:
        """All counters and histogram samples."""
        gauges = {name for name, kind in self.types.items() if kind == "gauge"}
        return {key: value for key, value in self.samples.items() if key[0] not in gauges}


def scrape(client: Client, headers: Mapping[str, str] | None = None) -> Scrape:
    """The server's metrics now."""
    answer = client.request("GET", "/metrics", headers=headers)
    assert answer.status == 200
    return parsed(answer.body.decode())


def parsed(text: str) -> Scrape:
    samples: dict[tuple[str, Labels], float] = {}
    types: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        types[family.name] = family.type
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples, f"{key} stands twice"
            samples[key] = sample.value
    return Scrape(text, samples, types)
