"""What the cache has done since start-up, and what it holds now."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CacheCounters:
    """Counts since start-up; only the worker changes them."""

    snapshot_hits: int = 0
    reused_tokens: int = 0
    blocks_inserted: int = 0
    blocks_reattached: int = 0
    blocks_duplicate: int = 0
    taps_created: int = 0
    taps_skipped: int = 0
    endpoints_created: int = 0
    evicted_blocks: int = 0
    evicted_snapshots: int = 0
    unbacked_node_losses: int = 0


@dataclass(frozen=True, slots=True)
class CacheGauges:
    """What the cache holds. ``device_blocks`` have a page; ``evictable_blocks`` may be dropped at once."""

    device_blocks: int
    evictable_blocks: int
    tree_blocks: int
    snapshots: int
