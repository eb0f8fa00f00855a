"""Sizes of the cache, fixed at start-up: what was asked for, or what follows from lanes and prefill chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ninfer import spec


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """What the command line says; None follows from the rest. ``reuse`` False: nothing is read or written."""

    reuse: bool = True
    snapshot_slots: int | None = None
    taps_per_request: int | None = None
    tap_ladder: int | None = None
    tap_min_gap: int | None = None


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """``tap_ladder`` and ``tap_min_gap`` in tokens; ``chunk`` is the prefill chunk."""

    reuse: bool
    snapshot_slots: int
    taps_per_request: int
    tap_ladder: int
    tap_min_gap: int
    chunk: int


def resolve_limits(options: CacheOptions, lanes: int, chunk: int, host_tier: bool = False) -> CacheLimits:
    """The sizes of a server with ``lanes`` lanes and prefill chunks of ``chunk`` tokens (rounded to 64)."""
    defaults = spec.document("cache")["defaults"]
    tier = "with_host" if host_tier else "without_host"

    def given(value: int | None, default: int) -> int:
        return default if value is None else value

    def of_chunk(row: Any) -> int:
        return max(int(row["minimum"]), int(row["chunks"]) * chunk)

    slots = given(options.snapshot_slots, lanes + defaults["snapshot_slots_beyond_lanes"][tier])
    return CacheLimits(
        reuse=options.reuse,
        snapshot_slots=slots if options.reuse else 0,
        taps_per_request=given(options.taps_per_request, defaults["taps_per_request"][tier]),
        tap_ladder=given(options.tap_ladder, of_chunk(defaults["tap_ladder"])),
        tap_min_gap=given(options.tap_min_gap, of_chunk(defaults["tap_min_gap"])),
        chunk=chunk,
    )
