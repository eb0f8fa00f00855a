"""What an interval of serving came to: the difference of two snapshots of the engine.

Owns the arithmetic of the throughput record; its JSON form and its console line are made from one value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ninfer.engine.statistics import EngineStatistics, HybridCache
from ninfer.server.observe.log_events import host_seconds, transfers

Members = dict[str, Any]
S = TypeVar("S", bound=msgspec.Struct)

_GAUGES = frozenset(HybridCache.__struct_fields__[:6]) | {"last_selection_tokens"}


@dataclass(frozen=True, slots=True)
class Interval:
    """``seconds`` of serving: ``now`` has its gauges at the end, ``counted`` what was counted in between."""

    seconds: float
    now: EngineStatistics
    counted: EngineStatistics
    final: bool = False

    @property
    def idle(self) -> bool:
        """Neither tokens nor cache work: nothing to report."""
        tokens = self.counted.tokens
        moved = self.counted.cache
        done = (
            tokens.prefill,
            tokens.replayed,
            tokens.generation,
            self.counted.decode_rounds,
            moved.captures_completed,
            moved.captures_aborted,
            moved.spill_pages,
            *_counts(moved.hybrid),
            *(value for kind in ("state", "main_kv", "backend_kv") for value in _bytes(self.counted, kind)),
        )
        return not any(done)

    @property
    def average_batch(self) -> float | None:
        return ratio(self.counted.decode_row_rounds, self.counted.decode_rounds)


def interval(before: EngineStatistics, now: EngineStatistics, seconds: float, *, final: bool) -> Interval:
    return Interval(seconds, now, difference(now, before), final)


def difference(later: S, earlier: S) -> S:
    """Member by member; gauges keep the later value."""
    changes: dict[str, Any] = {}
    for name in later.__struct_fields__:
        after, before = getattr(later, name), getattr(earlier, name)
        if name in ("scheduler", "occupancy") or name in _GAUGES:
            continue
        if isinstance(after, msgspec.Struct):
            changes[name] = difference(after, type(after)() if before is None else before)
        elif isinstance(after, int | float):
            changes[name] = after - before
    return msgspec.structs.replace(later, **changes)


def ratio(numerator: float, denominator: float, scale: float = 1.0) -> float | None:
    """None where there is nothing to divide by."""
    return scale * numerator / denominator if denominator else None


def throughput(span: Interval) -> Members:
    """The record's members."""
    counted, tokens = span.counted, span.counted.tokens
    recovery = counted.recovery
    return {
        "interval_seconds": span.seconds,
        "final_interval": span.final,
        "tokens": {"computed_prefill": tokens.prefill, "committed_decode": tokens.decode},
        "throughput_tokens_per_second": {
            "prefill": ratio(tokens.prefill, span.seconds),
            "decode": ratio(tokens.decode, span.seconds),
        },
        "scheduler": msgspec.structs.asdict(span.now.scheduler),
        "device_kv_growth_lease_pages": span.now.occupancy.kv_lease_pages,
        "scheduling": {
            "preemptions": recovery.preemptions,
            "snapshot_restores": recovery.snapshot_restores,
            "replay_restores": recovery.replay_restores,
            "replayed_tokens": tokens.replayed,
        },
        "engine_recoveries": recovery.failures,
        "decode_batch": {
            "rounds": counted.decode_rounds,
            "row_rounds": counted.decode_row_rounds,
            "average_size": span.average_batch,
        },
        "host_work": _host_work(counted),
        "context_cache": _context_cache(span),
    }


def _host_work(counted: EngineStatistics) -> Members:
    work, classes = counted.work, counted.work.classes
    rounds, rows = counted.decode_rounds, counted.decode_row_rounds
    return {
        "elapsed_seconds": host_seconds(work.host),
        "device_wait_seconds": work.device_wait_s,
        "work_class_seconds": msgspec.structs.asdict(classes),
        "detail_subset_seconds": {"stats_publication": work.publication_s},
        "detail_invocations": {"stats_publication": work.publications},
        "units": {"prefill": counted.prefill_units, "control": counted.control_units},
        "constraint_draft_wait_seconds": work.draft_wait_s,
        "decode_host_microseconds_per_round": ratio(classes.decode_host, rounds, 1e6),
        "decode_host_microseconds_per_row_round": ratio(classes.decode_host, rows, 1e6),
        "decode_device_wait_microseconds_per_round": ratio(classes.decode_device_wait, rounds, 1e6),
        "detail_microseconds_per_invocation": ratio(work.publication_s, work.publications, 1e6),
    }


def _context_cache(span: Interval) -> Members:
    cache, occupancy = span.counted.cache, span.now.occupancy
    moved = transfers(span.counted.transfers)
    members: Members = {
        "selections": {
            "root": cache.root_selections,
            "checkpoint": cache.checkpoint_selections,
            "reused_prompt_tokens": cache.reused_prompt_tokens,
        },
        "last_selection": {"frontier_tokens": span.now.cache.last_selection_tokens},
        "captures": {"completed": cache.captures_completed, "aborted": cache.captures_aborted},
        "state_operations": {
            "moves": cache.state_moves,
            "forks": cache.state_forks,
            "materialization_forks": cache.materialization_forks,
            "restores": cache.state_restores,
        },
        "state_transfers": moved["state"],
        "main_kv_transfers": moved["main_kv"],
        "backend_kv_transfers": moved["backend_kv"],
        "pressure": {
            "spill_pages": cache.spill_pages,
            "partial_tail_cow_pages": cache.partial_tail_cow_pages,
        },
        "occupancy": {
            "device_state_slots": occupancy.state_used_slots,
            "host_state_slots": occupancy.host_state_slots,
            "device_main_kv_pages": occupancy.kv_used_pages,
            "device_backend_kv_pages": occupancy.backend_kv_pages,
            "host_kv_bytes": occupancy.host_kv_bytes,
            "host_context_occupied_bytes": occupancy.host_used_bytes,
            "host_context_peak_occupied_bytes": occupancy.host_peak_bytes,
            "host_context_reserved_bytes": occupancy.host_reserved_bytes,
        },
    }
    if span.now.cache.hybrid is not None:
        members["hybrid"] = msgspec.structs.asdict(cache.hybrid or HybridCache())
    return members


def _counts(hybrid: HybridCache | None) -> list[int]:
    if hybrid is None:
        return []
    return [getattr(hybrid, name) for name in HybridCache.__struct_fields__ if name not in _GAUGES]


def _bytes(statistics: EngineStatistics, kind: str) -> list[int]:
    moved = getattr(statistics.transfers, kind)
    return [moved.device_to_host_bytes, moved.host_to_device_bytes, moved.device_to_device_bytes]


class Throughput:
    """Cuts the engine's counters into intervals. ``read`` gives its latest snapshot; ``clock`` is the same
    machine-wide monotonic clock as the engine's.
    """

    def __init__(self, read: Callable[[], EngineStatistics], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._before = read()
        self._since = clock()

    def next(self, *, final: bool = False) -> Interval | None:
        """The interval since the last call; None when it was idle."""
        now = self._read()
        # A busy engine's counts are as old as its snapshot; an idle one's hold until now.
        busy = now.scheduler.running > 0
        at = max(now.taken_s, self._since) if busy else self._clock()
        span = interval(self._before, now, at - self._since, final=final)
        self._before, self._since = now, at
        return None if span.idle else span
