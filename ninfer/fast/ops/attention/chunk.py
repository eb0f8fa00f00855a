"""Attention of a prefill chunk: up to 64 queries of one KV head at a time over their lane's pages, gated.

A row's result depends on its own place alone, wherever its chunk was cut.
"""

from __future__ import annotations

import numpy as np

from ninfer.fast.ops.attention import contract as c
from ninfer.fast.ops.attention.pages import QUERIES, ask, attend_pages, finish, page_scratch_floats
from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.control import BLOCK_TABLE, POSITION


def scratch_floats(head_dim: int) -> int:
    """Floats that one thread needs: those of its pages, and the state of each query."""
    return page_scratch_floats(head_dim) + QUERIES * (head_dim + c.PARTIAL_PADDING)


@part
def chunk_tasks(d, count):
    """Tasks of ``attend_chunk`` for ``count`` rows."""
    rows = QUERIES // (d[c.QUERY_HEADS] // d[c.KV_HEADS])
    return (count + rows - 1) // rows * d[c.KV_HEADS]


@part
def attend_chunk(d, rows, count, task, thread):
    """Some rows of one KV head over all keys up to each row's own, gated."""
    group = d[c.QUERY_HEADS] // d[c.KV_HEADS]
    step, head = QUERIES // group, task % d[c.KV_HEADS]
    first = task // d[c.KV_HEADS] * step
    taken, size = min(step, count - first), d[c.HEAD_DIM]
    scratch = d[c.SCRATCH] + thread * d[c.SCRATCH_STRIDE]
    record = 4 * (size + c.PARTIAL_PADDING)
    states = scratch + d[c.SCRATCH_STRIDE] - QUERIES * record
    for index in range(taken * group):
        row = first + index // group
        q = d[c.Q] + row * d[c.Q_STRIDE] + 4 * (head * group + index % group) * size
        ask(scratch, index, q, states + record * index, rows[row, POSITION], size)
    attend_pages(d, rows[first, BLOCK_TABLE], head, np.int64(0), taken * group, scratch)
    for index in range(taken * group):
        finish(d, first + index // group, head * group + index % group, states + record * index)
