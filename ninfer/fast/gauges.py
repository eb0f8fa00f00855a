"""What scheduler, memory and cache look like now, for a snapshot of statistics."""

from __future__ import annotations

from dataclasses import asdict

from ninfer.engine.statistics import CacheCounters, HybridCache, Occupancy, SchedulerGauges
from ninfer.fast.memory.lanes import pages_for
from ninfer.fast.prefix.cache import PrefixCache
from ninfer.fast.program.program import Program
from ninfer.fast.residents import Residents
from ninfer.fast.schedule.scheduler import Phase


def gauges(residents: Residents) -> SchedulerGauges:
    """Requests by state."""
    scheduler = residents.scheduler
    phases = [ticket.phase for ticket in scheduler.residents]
    return SchedulerGauges(
        running=len(phases),
        prefilling=phases.count(Phase.PREFILL),
        decode_ready=phases.count(Phase.DECODE),
        waiting=len(scheduler.waiting),
        paused=len(scheduler.paused),
        replaying=phases.count(Phase.REPLAY),
        materializing=residents.materializing,
    )


def occupancy(program: Program, residents: Residents) -> Occupancy:
    """Pages and state slots in use, those of the cache among them."""
    pages = program.options.pages
    resident = residents.of(residents.scheduler.residents)
    grown = sum(
        max(0, len(active.lane.pages) - pages_for(active.prompt)) for active in resident if active.lane
    )
    return Occupancy(
        kv_used_pages=pages - program.memory.free_pages,
        kv_capacity_pages=pages,
        kv_lease_pages=grown,
        state_used_slots=len(resident) + len(residents.cache.index.shelf.held),
        state_capacity_slots=program.options.lanes + program.options.snapshot_slots,
    )


def cache_counters(cache: PrefixCache) -> CacheCounters:
    """What the cache has done; ``hybrid`` from its first block or snapshot on."""
    index, selections = cache.index, cache.selections
    counted = asdict(index.counters)
    counted.pop("evicted_snapshots")
    used = index.counters.blocks_inserted or index.shelf.held
    return CacheCounters(
        captures_completed=index.counters.taps_created + index.counters.endpoints_created,
        captures_aborted=index.counters.taps_skipped,
        root_selections=selections.roots,
        checkpoint_selections=selections.checkpoints,
        reused_prompt_tokens=index.counters.reused_tokens,
        last_selection_tokens=selections.last_tokens,
        hybrid=HybridCache(**asdict(index.gauges), **counted) if used else None,
    )
