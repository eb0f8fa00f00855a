"""What the scheduler and the memory look like now, for a snapshot of statistics."""

from __future__ import annotations

from ninfer.engine.statistics import Occupancy, SchedulerGauges
from ninfer.fast.program.program import Program
from ninfer.fast.schedule.scheduler import Phase, Scheduler


def gauges(scheduler: Scheduler) -> SchedulerGauges:
    """Requests by state."""
    running = len(scheduler.residents)
    prefilling = sum(ticket.phase is Phase.PREFILL for ticket in scheduler.residents)
    return SchedulerGauges(running, prefilling, running - prefilling, len(scheduler.waiting))


def occupancy(program: Program, scheduler: Scheduler) -> Occupancy:
    """Pages and state slots in use."""
    pages = program.options.pages
    return Occupancy(
        kv_used_pages=pages - program.free_pages,
        kv_capacity_pages=pages,
        state_used_slots=len(scheduler.residents),
        state_capacity_slots=scheduler.lanes,
    )
