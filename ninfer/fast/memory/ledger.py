"""Sizing of the KV pool and the ledger line that start-up prints: every byte the engine holds, by owner."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ninfer.fast.memory.pages import planes
from ninfer.fast.ops.control import PAGE_TOKENS
from ninfer.model.config import TextConfig

if TYPE_CHECKING:
    from ninfer.fast.program.program import Program

# Contract: automatic capacity on CPU is a quarter of the free memory, at most four contexts a lane.
AUTO_SHARE = 0.25
AUTO_CONTEXTS = 4


def page_bytes(config: TextConfig, kv_format: str, mtp: bool = False) -> int:
    """Bytes of one KV page over all attention layers, the MTP head's too; 0 without attention."""
    if config.attention is None:
        return 0
    row = sum(plane.row_bytes for plane in planes(kv_format, config.attention.head_dim))
    layers = config.layer_types.count("full_attention") + mtp
    return layers * config.attention.kv_heads * PAGE_TOKENS * row


def available_bytes() -> int:
    """Memory that can be taken without swapping."""
    with open("/proc/meminfo", encoding="ascii") as table:
        for line in table:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def resolve_pages(capacity: int | None, max_context: int, lanes: int, per_page: int, available: int) -> int:
    """Pages of the pool: as asked, or a quarter of ``available`` bytes, at most four contexts a lane."""
    if capacity is not None:
        return -(-capacity // PAGE_TOKENS)
    most = -(-AUTO_CONTEXTS * max_context * lanes // PAGE_TOKENS)
    if per_page == 0:
        return most
    least = -(-max_context // PAGE_TOKENS)
    return max(least, min(most, int(AUTO_SHARE * available) // per_page))


def ledger(program: Program, weight_bytes: int) -> str:
    """One line: what the engine holds in MiB, by owner."""
    pages = program.pages
    kv_bytes = 0 if pages is None else pages.pages * pages.page_bytes
    held = {
        "weights": weight_bytes,
        "kv": kv_bytes,
        "states": program.states.slots * program.states.image_bytes,
        "workspace": program.workspace_bytes,
    }
    parts = " ".join(f"{name}={size / 2**20:.1f}" for name, size in held.items())
    return (
        f"memory_mib {parts} total={sum(held.values()) / 2**20:.1f} "
        f"kv_capacity_tokens={program.options.pages * PAGE_TOKENS} lanes={program.options.lanes}"
    )
