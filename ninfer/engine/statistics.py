"""What an engine reports of itself, for metrics, the request log and the panel.

Owns the snapshot that crosses the process border: before the end of each request, at most a few times a
second in between, and at idle. Counters start at 0 when the engine stands ready and never fall; seconds are
wall time of the worker's thread. One request's own part stands in ``request_work.py``.
"""

from __future__ import annotations

import msgspec


class HostSeconds(msgspec.Struct, frozen=True):
    """Time in which the worker itself was at work, in five phases that exclude each other.

    ``engine_boundary``: between units (commands, admission, binding). ``program_submit``: preparing a unit.
    ``program_post``: taking its result. ``engine_commit_output``: committing and publishing tokens.
    ``engine_maintenance``: bookkeeping, snapshots of statistics among it.
    """

    engine_boundary: float = 0.0
    program_submit: float = 0.0
    program_post: float = 0.0
    engine_commit_output: float = 0.0
    engine_maintenance: float = 0.0

    @property
    def total(self) -> float:
        return (
            self.engine_boundary
            + self.program_submit
            + self.program_post
            + self.engine_commit_output
            + self.engine_maintenance
        )


class ClassSeconds(msgspec.Struct, frozen=True):
    """The same time by what it was spent for; ``control`` is everything outside units of the other two.

    ``device_wait``: the worker waits for a launched unit (on CPU: for the compiled kernels to end).
    """

    decode_host: float = 0.0
    decode_device_wait: float = 0.0
    prefill_host: float = 0.0
    prefill_device_wait: float = 0.0
    control_host: float = 0.0
    control_device_wait: float = 0.0


class WorkSeconds(msgspec.Struct, frozen=True):
    """Where the worker's time went; every segment is counted once, whatever the batch.

    ``publication_s`` and ``publications``: making these snapshots, already inside ``engine_maintenance``.
    ``draft_wait_s``: waiting for constrained drafts, already inside ``device_wait_s``.
    """

    host: HostSeconds = HostSeconds()
    device_wait_s: float = 0.0
    classes: ClassSeconds = ClassSeconds()
    publication_s: float = 0.0
    publications: int = 0
    draft_wait_s: float = 0.0


class SchedulerGauges(msgspec.Struct, frozen=True):
    """Requests by state; ``prefilling``, ``decode_ready`` and ``replaying`` are part of ``running``."""

    running: int = 0
    prefilling: int = 0
    decode_ready: int = 0
    waiting: int = 0
    paused: int = 0
    replaying: int = 0
    materializing: int = 0
    capture_pending: int = 0
    terminal_pending: int = 0


class TokenCounters(msgspec.Struct, frozen=True):
    """``prompt`` and ``cached`` once at a request's first binding; ``prefill`` as computed, without replay.

    ``generation`` is every committed output token, ``decode`` the same without each request's first.
    """

    prompt: int = 0
    cached: int = 0
    prefill: int = 0
    replayed: int = 0
    generation: int = 0
    decode: int = 0


class DraftCounters(msgspec.Struct, frozen=True):
    """Speculation: rounds that verified drafts, their drafts, the accepted ones, steps without a draft."""

    rounds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    fallback_steps: int = 0


class RecoveryCounters(msgspec.Struct, frozen=True):
    """Pauses under pressure and how requests came back; ``failures`` of units that the engine survived."""

    preemptions: int = 0
    snapshot_restores: int = 0
    replay_restores: int = 0
    failures: int = 0


class Transfer(msgspec.Struct, frozen=True):
    """Payload moved between the device and the host, and the time its copies took."""

    device_to_host_bytes: int = 0
    host_to_device_bytes: int = 0
    device_to_device_bytes: int = 0
    device_to_host_s: float = 0.0
    host_to_device_s: float = 0.0
    device_to_device_s: float = 0.0


class Transfers(msgspec.Struct, frozen=True):
    """Transfers of each kind of context."""

    state: Transfer = Transfer()
    main_kv: Transfer = Transfer()
    backend_kv: Transfer = Transfer()


class Occupancy(msgspec.Struct, frozen=True):
    """Memory in use, retained history included.

    ``kv_lease_pages``: pages by which running requests have grown beyond their prompt.
    ``host_reserved_bytes`` is part of ``host_used_bytes``.
    """

    kv_used_pages: int = 0
    kv_capacity_pages: int = 0
    kv_lease_pages: int = 0
    backend_kv_pages: int = 0
    state_used_slots: int = 0
    state_capacity_slots: int = 0
    host_state_slots: int = 0
    host_kv_bytes: int = 0
    host_used_bytes: int = 0
    host_reserved_bytes: int = 0
    host_capacity_bytes: int = 0
    host_peak_bytes: int = 0


class HybridCache(msgspec.Struct, frozen=True):
    """The hybrid prefix cache: six gauges, then counters since the start."""

    device_blocks: int = 0
    evictable_blocks: int = 0
    tree_blocks: int = 0
    snapshots: int = 0
    host_capacity_bytes: int = 0
    host_used_bytes: int = 0
    snapshot_hits: int = 0
    reused_tokens: int = 0
    blocks_inserted: int = 0
    blocks_reattached: int = 0
    blocks_duplicate: int = 0
    taps_created: int = 0
    taps_skipped: int = 0
    endpoints_created: int = 0
    host_image_writes: int = 0
    host_block_writes: int = 0
    host_image_restores: int = 0
    host_block_restores: int = 0
    host_write_bytes: int = 0
    host_restore_bytes: int = 0
    evicted_blocks: int = 0
    host_snapshot_evictions: int = 0
    host_dead_reclaims: int = 0
    unbacked_node_losses: int = 0


class CacheCounters(msgspec.Struct, frozen=True):
    """What the context cache did since the start; ``last_selection_tokens`` is a gauge.

    ``hybrid`` is None until that cache has inserted a block or holds a snapshot.
    """

    captures_completed: int = 0
    captures_aborted: int = 0
    root_selections: int = 0
    checkpoint_selections: int = 0
    reused_prompt_tokens: int = 0
    last_selection_tokens: int = 0
    state_moves: int = 0
    state_forks: int = 0
    materialization_forks: int = 0
    state_restores: int = 0
    spill_pages: int = 0
    partial_tail_cow_pages: int = 0
    hybrid: HybridCache | None = None


class EngineStatistics(msgspec.Struct, frozen=True, tag="statistics"):
    """One consistent snapshot of a worker, taken at ``taken_s`` of its monotonic clock.

    ``decode_row_rounds`` counts each round once per row. ``prefill_units`` and ``control_units`` count units.
    """

    taken_s: float = 0.0
    scheduler: SchedulerGauges = SchedulerGauges()
    tokens: TokenCounters = TokenCounters()
    decode_rounds: int = 0
    decode_row_rounds: int = 0
    prefill_units: int = 0
    control_units: int = 0
    draft: DraftCounters = DraftCounters()
    recovery: RecoveryCounters = RecoveryCounters()
    work: WorkSeconds = WorkSeconds()
    occupancy: Occupancy = Occupancy()
    transfers: Transfers = Transfers()
    cache: CacheCounters = CacheCounters()


class EngineResources(msgspec.Struct, frozen=True):
    """What an engine holds from its start to its end; bytes unless the name says otherwise.

    ``kv_capacity_tokens`` 0: the engine takes memory as requests grow. ``kernels`` names what computes.
    ``sizing_free_bytes``: what automatic sizing found free on a device; None where it did not size there.
    """

    device: str = "cpu"
    device_name: str = ""
    kernels: str = ""
    threads: int = 1
    activations: str = "float32"
    kv_format: str = ""
    kv_capacity_tokens: int = 0
    kv_page_tokens: int = 0
    kv_page_bytes: int = 0
    kv_pages: int = 0
    prefill_chunk: int = 0
    state_slots: int = 0
    state_image_bytes: int = 0
    snapshot_slots: int = 0
    host_capacity_bytes: int = 0
    weight_bytes: int = 0
    workspace_bytes: int = 0
    available_bytes: int = 0
    graph_allowance_bytes: int = 0
    graph_measured_bytes: int = 0
    prefix_cache: str | None = None
    device_index: int | None = None
    device_capability: str = ""
    device_bytes: int = 0
    cuda_runtime: str = ""
    cuda_driver: str = ""
    sizing_free_bytes: int | None = None
    sizing_headroom_bytes: int = 0
