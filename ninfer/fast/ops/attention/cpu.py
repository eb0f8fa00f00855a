"""Gated paged attention on CPUs: append, attend and merge as tasks of one row and head."""

from __future__ import annotations

import math

import numpy as np

from ninfer.fast.ops.attention import contract as c
from ninfer.fast.ops.attention.narrow import store_narrow
from ninfer.fast.ops.attention.pages import attend_rows, finish, partial, split_count
from ninfer.fast.ops.attention.rows import (
    add_scaled,
    rotate,
    round_to_bf16,
    scale_row,
    store_bf16,
    store_f16,
    store_int8,
)
from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.control import AXIS_T, BLOCK_TABLE, PAGE_TOKENS, POSITION
from ninfer.fast.ops.rms_norm.cpu import normalise
from ninfer.fast.ops.views import copy, floats, integers


@part
def rotary_table(d, rows, row):
    """Cosines, then sines, of one row's rotary pairs; angles are float32 products as in the model."""
    pairs = d[c.PAIRS]
    frequency, axis = floats(d[c.FREQUENCIES], pairs), integers(d[c.PAIR_AXES], pairs)
    table = floats(d[c.TABLE] + 8 * row * pairs, 2 * pairs)
    for pair in range(pairs):
        angle = np.float32(rows[row, AXIS_T + axis[pair]]) * frequency[pair]
        table[pair] = math.cos(angle)
        table[pairs + pair] = math.sin(angle)


@part
def _rope(address, table, rotary):
    pairs = rotary // 2
    x, cosine, sine = floats(address, rotary), floats(table, pairs), floats(table + 4 * pairs, pairs)
    for pair in range(pairs):
        low, high = x[pair], x[pairs + pair]
        x[pair] = low * cosine[pair] - high * sine[pair]
        x[pairs + pair] = high * cosine[pair] + low * sine[pair]


@part
def append(d, rows, task):
    """One row and KV head: its key and value into the page, its group of queries in place."""
    row, head = task // d[c.KV_HEADS], task % d[c.KV_HEADS]
    size, number = d[c.HEAD_DIM], d[c.KV_FORMAT]
    table = d[c.ANGLES] + 4 * row * d[c.ROTARY]
    group = d[c.QUERY_HEADS] // d[c.KV_HEADS]
    scale = np.float32(1.0 / np.sqrt(size))
    for query in range(head * group, (head + 1) * group):
        q = d[c.Q] + row * d[c.Q_STRIDE] + 4 * query * size
        normalise(q, d[c.Q_NORM], q, size, d[c.EPS_BITS])
        _rope(q, table, d[c.ROTARY])
        if number >= c.ROTATED_KEYS:
            rotate(q, size)
        scale_row(q, size, scale)
    k = d[c.KEYS] + row * d[c.KV_STRIDE] + 4 * head * size
    v = d[c.VALUES] + row * d[c.KV_STRIDE] + 4 * head * size
    normalise(k, d[c.K_NORM], k, size, d[c.EPS_BITS])
    _rope(k, table, d[c.ROTARY])
    slot = _slot(d, rows[row, BLOCK_TABLE], rows[row, POSITION], head)
    store(number, k, v, slot, d, size)


@part
def store(number, k, v, slot, d, size):
    """One normed and rotated key and its raw value, at row ``slot`` of the pools; k and v are overwritten."""
    if number == c.KV_F32:
        copy(k, d[c.K_POOL] + 4 * slot * size, size)
        copy(v, d[c.V_POOL] + 4 * slot * size, size)
        return
    round_to_bf16(k, size)
    round_to_bf16(v, size)
    if number == c.KV_BF16:
        store_bf16(k, d[c.K_POOL] + 2 * slot * size, size)
        store_f16(v, d[c.V_POOL] + 2 * slot * size, size)
        return
    rotate(k, size)
    if number >= c.ROTATED_VALUES:
        rotate(v, size)
    if number >= c.EXPANDED:
        store_narrow(number, k, v, slot, d, size)
    else:
        groups = size // c.GROUP
        store_int8(k, d[c.K_POOL] + slot * size, d[c.K_SCALES] + 2 * slot * groups, size)
        store_int8(v, d[c.V_POOL] + slot * size, d[c.V_SCALES] + 2 * slot * groups, size)


@part
def _slot(d, block_table, position, head):
    """Row number in the pools of ``position`` and KV head ``head``."""
    page = np.int64(integers(block_table, position // PAGE_TOKENS + 1)[position // PAGE_TOKENS])
    return (page * d[c.KV_HEADS] + head) * PAGE_TOKENS + position % PAGE_TOKENS


@part
def most_splits(rows, count):
    """Splits of the longest of ``count`` rows."""
    splits = 1
    for row in range(count):
        splits = max(splits, split_count(rows[row, POSITION]))
    return splits


@part
def attend_tasks(d, rows, count):
    """Tasks of ``attend`` for ``count`` rows; every group of them has the tasks of the longest."""
    groups, _, _ = _group(d, rows, count, 0)
    return groups * d[c.KV_HEADS] * most_splits(rows, count)


@part
def _group(d, rows, count, wanted):
    """How many groups of rows read pages together; where the rows of group ``wanted`` begin and end.

    A group is some rows of one lane, as many as fill a task with their queries.
    """
    together = max(1, c.QUERIES_TOGETHER * d[c.KV_HEADS] // d[c.QUERY_HEADS])
    groups, first, end = 0, 0, count
    for row in range(count):
        if row % together == 0 or rows[row, BLOCK_TABLE] != rows[row - 1, BLOCK_TABLE]:
            if groups == wanted:
                first = row
            if groups == wanted + 1:
                end = row
            groups += 1
    return groups, first, end


@part
def attend(d, rows, count, task, thread):
    """A group of rows of one lane, KV head and split: partial results of the head's query group.

    Rows that have one split are finished; ``merge`` knows them by that.
    """
    groups, _, _ = _group(d, rows, count, 0)
    _, row, end = _group(d, rows, count, task % groups)
    attend_rows(d, rows, row, end, task // groups % d[c.KV_HEADS], task // groups // d[c.KV_HEADS], thread)


@part
def merge_tasks(d, rows, count):
    """Tasks of ``merge`` for ``count`` rows: none where every row has one split."""
    return count * d[c.QUERY_HEADS] if most_splits(rows, count) > 1 else 0


@part
def merge(d, rows, task):
    """One row and query head of several splits: join them in order, into the first one, and finish."""
    row, query = task // d[c.QUERY_HEADS], task % d[c.QUERY_HEADS]
    splits, size = split_count(rows[row, POSITION]), d[c.HEAD_DIM]
    if splits == 1:
        return
    largest = np.float32(-np.inf)
    for split in range(splits):
        largest = max(largest, floats(partial(d, row, query, split) + 4 * size, 1)[0])
    joined, total = partial(d, row, query, 0), np.float32(0)
    for split in range(splits):
        part_ = partial(d, row, query, split)
        state = floats(part_ + 4 * size, 2)
        factor = np.float32(math.exp(state[0] - largest))
        total += factor * state[1]
        if split == 0:
            scale_row(joined, size, factor)
        else:
            add_scaled(part_, joined, size, factor)
    floats(joined + 4 * size, 2)[1] = total
    finish(d, row, query, joined)
