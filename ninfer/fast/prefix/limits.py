"""Sizes of the cache, fixed at start-up: what was asked for, or what follows from lanes and prefill chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ninfer import spec
from ninfer.engine.settings import CacheSettings


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """``tap_ladder`` and ``tap_min_gap`` in tokens; ``chunk`` is the prefill chunk."""

    reuse: bool
    snapshot_slots: int
    taps_per_request: int
    tap_ladder: int
    tap_min_gap: int
    chunk: int


def resolve_limits(settings: CacheSettings, lanes: int, chunk: int, host_tier: bool = False) -> CacheLimits:
    """The sizes of a server with ``lanes`` lanes and prefill chunks of ``chunk`` tokens (rounded to 64)."""
    defaults = spec.document("cache")["defaults"]
    tier = "with_host" if host_tier else "without_host"

    def given(value: int | None, default: int) -> int:
        return default if value is None else value

    def of_chunk(row: Any) -> int:
        return max(int(row["minimum"]), int(row["chunks"]) * chunk)

    slots = given(settings.snapshot_slots, lanes + defaults["snapshot_slots_beyond_lanes"][tier])
    return CacheLimits(
        reuse=settings.reuse,
        snapshot_slots=slots if settings.reuse else 0,
        taps_per_request=given(settings.taps_per_request, defaults["taps_per_request"][tier]),
        tap_ladder=given(settings.tap_ladder, of_chunk(defaults["tap_ladder"])),
        tap_min_gap=given(settings.tap_min_gap, of_chunk(defaults["tap_min_gap"])),
        chunk=chunk,
    )


def describe(limits: CacheLimits) -> str:
    """The line of the start-up log."""
    if not limits.reuse:
        return "prefix_cache off"
    return (
        f"prefix_cache hybrid snapshot_slots={limits.snapshot_slots} "
        f"taps_per_request={limits.taps_per_request} tap_ladder={limits.tap_ladder} "
        f"tap_min_gap={limits.tap_min_gap}"
    )
