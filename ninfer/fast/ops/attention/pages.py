"""Attention of some queries of one lane and KV head over its pages: what rounds and prefill chunks share.

Every page is made ready once for all of the queries, which then meet it four at a time. Pages come in
ascending order and queries never mix, so a query's result depends on the keys that it sees alone.
"""

from __future__ import annotations

import numpy as np

from ninfer.fast.ops.attention import contract as c
from ninfer.fast.ops.attention.narrow import expand_keys, expand_values
from ninfer.fast.ops.attention.rows import expand_f16, expand_i8, gate_row, rotate
from ninfer.fast.ops.attention.tile import (
    ENTRY,
    QUERY,
    SEEN,
    TARGET,
    attend_four,
    attend_one,
    attend_two,
    transpose_bf16,
    transpose_f32,
)
from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.control import BLOCK_TABLE, PAGE_TOKENS, POSITION
from ninfer.fast.ops.copies import copy_row
from ninfer.fast.ops.views import clear, copy, floats, integers, longs

QUERIES = 64  # at most, of one task
_ENTRIES = 8 * ENTRY * QUERIES  # bytes


def page_scratch_floats(head_dim: int) -> int:
    """Floats that one thread needs: queries, those that see a page; keys, values and four rows of scores."""
    return 2 * _ENTRIES // 4 + PAGE_TOKENS * (2 * head_dim + 4)


def state_scratch_floats(head_dim: int) -> int:
    """Floats that it needs besides where nothing is kept of a split: the state of every query."""
    return QUERIES * (head_dim + c.PARTIAL_PADDING)


@part
def split_count(position):
    """Splits of a row that sees the keys 0..position."""
    return position // c.SPLIT_TOKENS + 1


@part
def partial(d, row, query, split):
    """Where the state of one row, query head and split stands."""
    index = (row * d[c.QUERY_HEADS] + query) * d[c.MAX_SPLITS] + split
    return d[c.PARTIALS] + 4 * index * (d[c.HEAD_DIM] + c.PARTIAL_PADDING)


@part
def attend_rows(d, rows, row, end, head, split, thread):
    """The rows ``row``..``end`` of one lane and the queries of a KV head over the keys of a split.

    Where nothing is kept of a split (PARTIALS is 0, in a chunk), the only one is whole. Rows that have one
    split are finished.
    """
    size, group = d[c.HEAD_DIM], d[c.QUERY_HEADS] // d[c.KV_HEADS]
    scratch = d[c.SCRATCH] + thread * d[c.SCRATCH_STRIDE]
    first, queries = split * c.SPLIT_TOKENS, 0
    for index in range(row, end):
        limit = rows[index, POSITION]
        if d[c.PARTIALS] != 0:
            limit = min(limit, first + c.SPLIT_TOKENS - 1)
        if limit >= first:
            for member in range(head * group, (head + 1) * group):
                q = d[c.Q] + index * d[c.Q_STRIDE] + 4 * member * size
                _ask(scratch, queries, q, _state(d, scratch, queries, index, member, split), limit, size)
                queries += 1
    _attend_pages(d, rows[row, BLOCK_TABLE], head, first, queries, scratch)
    for index in range(row, end):
        if d[c.PARTIALS] == 0 or (split == 0 and split_count(rows[index, POSITION]) == 1):
            for query in range(group):
                member, number = head * group + query, (index - row) * group + query
                finish(d, index, member, _state(d, scratch, number, index, member, split))


@part
def _state(d, scratch, number, row, query, split):
    """Where the state of a query, the task's ``number``-th, stands."""
    if d[c.PARTIALS] != 0:
        return partial(d, row, query, split)
    return scratch + d[c.SCRATCH_STRIDE] - 4 * (QUERIES - number) * (d[c.HEAD_DIM] + c.PARTIAL_PADDING)


@part
def _ask(scratch, index, query, target, limit, size):
    """Query number ``index`` of a task sees the positions up to ``limit``; its state at ``target`` opens."""
    entry = longs(scratch + 8 * ENTRY * index, ENTRY)
    entry[QUERY], entry[TARGET], entry[SEEN] = query, target, limit
    clear(target, size + c.PARTIAL_PADDING)
    floats(target + 4 * size, 1)[0] = -np.inf


@part
def _attend_pages(d, block_table, head, first, queries, scratch):
    """The ``queries`` that were asked, over the keys from ``first``, where a page begins, to their limits."""
    size = d[c.HEAD_DIM]
    shown = scratch + _ENTRIES
    keys = shown + _ENTRIES
    values = keys + 4 * PAGE_TOKENS * size
    scores = values + 4 * PAGE_TOKENS * size
    asked, last = longs(scratch, ENTRY * queries), first - 1
    for index in range(queries):
        last = max(last, asked[ENTRY * index + SEEN])
    pages = integers(block_table, last // PAGE_TOKENS + 1)
    for begin in range(first, last + 1, PAGE_TOKENS):
        slot = (np.int64(pages[begin // PAGE_TOKENS]) * d[c.KV_HEADS] + head) * PAGE_TOKENS
        page_values = _page(d, slot, min(PAGE_TOKENS, last + 1 - begin), keys, values)
        seeing, index = _show(asked, queries, begin, shown), 0
        while index + 4 <= seeing:
            attend_four(shown + 8 * ENTRY * index, keys, page_values, size, scores)
            index += 4
        if index + 2 <= seeing:
            attend_two(shown + 8 * ENTRY * index, keys, page_values, size, scores)
            index += 2
        if index < seeing:
            attend_one(shown + 8 * ENTRY * index, keys, page_values, size, scores)


@part
def finish(d, row, query, state):
    """The output of one row and query head from its state: over the weights' sum, rotated back, gated."""
    size = d[c.HEAD_DIM]
    y = d[c.Y] + row * d[c.Y_STRIDE] + 4 * query * size
    copy(state, y, size)
    if d[c.KV_FORMAT] >= c.ROTATED_VALUES:
        rotate(y, size)
    gate = d[c.GATE] + row * d[c.GATE_STRIDE] + 4 * query * size
    gate_row(y, gate, size, np.float32(1) / floats(state + 4 * size, 2)[1])
    copy_row(d, c.PERMUTED, row, query * size, y, size)


@part
def _show(asked, queries, begin, shown):
    """The queries that see some key of the page from ``begin``, and how many keys; how many queries do."""
    entries, seeing = longs(shown, ENTRY * queries), 0
    for index in range(queries):
        seen = min(PAGE_TOKENS, asked[ENTRY * index + SEEN] + 1 - begin)
        if seen > 0:
            entries[ENTRY * seeing + QUERY] = asked[ENTRY * index + QUERY]
            entries[ENTRY * seeing + TARGET] = asked[ENTRY * index + TARGET]
            entries[ENTRY * seeing + SEEN] = seen
            seeing += 1
    return seeing


@part
def _page(d, slot, count, keys, values):
    """The first ``count`` keys of a page transposed into ``keys``; where its values lie as float32.

    Keys in the pools beyond ``count``, up to a multiple of 16, are read too; nobody sees them.
    """
    size, number, groups = d[c.HEAD_DIM], d[c.KV_FORMAT], d[c.HEAD_DIM] // c.GROUP
    if number == c.KV_F32:
        transpose_f32(d[c.K_POOL] + 4 * slot * size, count, size, keys)
        return d[c.V_POOL] + 4 * slot * size
    if number == c.KV_BF16:
        transpose_bf16(d[c.K_POOL] + 2 * slot * size, count, size, keys)
        expand_f16(d[c.V_POOL] + 2 * slot * size, 0, count, size, values)
        return values
    # The values' room holds the keys until they are transposed.
    if number >= c.EXPANDED:
        expand_keys(d, slot, count, values)
    else:
        expand_i8(d[c.K_POOL] + slot * size, d[c.K_SCALES] + 2 * slot * groups, count, size, values)
    transpose_f32(values, count, size, keys)
    if number >= c.EXPANDED:
        expand_values(d, slot, count, values)
    else:
        expand_i8(d[c.V_POOL] + slot * size, d[c.V_SCALES] + 2 * slot * groups, count, size, values)
    return values
