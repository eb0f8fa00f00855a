"""Attention of a prefill chunk: up to 64 queries of one KV head at a time over their lane's pages, gated.

A row's result depends on its own place alone, wherever its chunk was cut.
"""

from __future__ import annotations

from ninfer.fast.ops.attention import contract as c
from ninfer.fast.ops.attention.pages import (
    QUERIES,
    attend_rows,
    page_scratch_floats,
    state_scratch_floats,
)
from ninfer.fast.ops.compiled import part


def scratch_floats(head_dim: int) -> int:
    """Floats that one thread needs: those of its pages, and the state of each query."""
    return page_scratch_floats(head_dim) + state_scratch_floats(head_dim)


@part
def chunk_tasks(d, count):
    """Tasks of ``attend_chunk`` for ``count`` rows."""
    rows = QUERIES // (d[c.QUERY_HEADS] // d[c.KV_HEADS])
    return (count + rows - 1) // rows * d[c.KV_HEADS]


@part
def attend_chunk(d, rows, count, task, thread):
    """Some rows of one KV head over all keys up to each row's own, gated. PARTIALS is 0."""
    step = QUERIES // (d[c.QUERY_HEADS] // d[c.KV_HEADS])
    first = task // d[c.KV_HEADS] * step
    attend_rows(d, rows, first, min(count, first + step), task % d[c.KV_HEADS], 0, thread)
