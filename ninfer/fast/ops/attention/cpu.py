"""Gated paged attention on CPUs: append, attend and merge as tasks of one row and head."""

from __future__ import annotations

import math

import numpy as np

from ninfer.fast.ops.attention import contract as c
from ninfer.fast.ops.attention.chunk import expand_bf16, expand_f16, expand_i8
from ninfer.fast.ops.attention.narrow import expand_page, store_narrow
from ninfer.fast.ops.attention.rows import (
    accumulate_four,
    add_scaled,
    exponentiate,
    gate_row,
    largest_of,
    page_accumulate,
    page_scores,
    rotate,
    round_to_bf16,
    scale_row,
    scores_of_four,
    store_bf16,
    store_f16,
    store_int8,
)
from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.control import AXIS_T, BLOCK_TABLE, PAGE_TOKENS, POSITION
from ninfer.fast.ops.permute import evens_first
from ninfer.fast.ops.rms_norm.cpu import normalise
from ninfer.fast.ops.views import clear, copy, floats, integers


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
def split_count(position):
    """Splits of a row that sees the keys 0..position."""
    return position // c.SPLIT_TOKENS + 1


@part
def attend_tasks(d, rows, count):
    """Tasks of ``attend`` for ``count`` rows; every row has the tasks of the longest."""
    splits = 1
    for row in range(count):
        splits = max(splits, split_count(rows[row, POSITION]))
    return count * d[c.KV_HEADS] * splits


@part
def attend(d, rows, count, task, thread):
    """Some rows of one lane, KV head and split: partial results of the head's query group.

    The task of a lane's first row, and of every eighth one, does those up to the next such row: they read
    each page together. The others have nothing to do.
    """
    row = task % count
    if row % c.ROWS_TOGETHER != 0 and rows[row, BLOCK_TABLE] == rows[row - 1, BLOCK_TABLE]:
        return
    end = row + 1
    while end < count and end % c.ROWS_TOGETHER != 0 and rows[end, BLOCK_TABLE] == rows[row, BLOCK_TABLE]:
        end += 1
    head = task // count % d[c.KV_HEADS]
    split = task // count // d[c.KV_HEADS]
    size, group = d[c.HEAD_DIM], d[c.QUERY_HEADS] // d[c.KV_HEADS]
    first = split * c.SPLIT_TOKENS
    last = first - 1
    for index in range(row, end):
        position = rows[index, POSITION]
        if split < split_count(position):
            last = max(last, min(position, first + c.SPLIT_TOKENS - 1))
            for member in range(group):
                _open_partial(d, _partial(d, index, head * group + member, split))
    scratch = d[c.SCRATCH] + thread * d[c.SCRATCH_STRIDE]
    for begin in range(first, last + 1, PAGE_TOKENS):
        slot = _slot(d, rows[row, BLOCK_TABLE], begin, head)
        page = _page(d, slot, min(PAGE_TOKENS, last + 1 - begin), end - row, scratch)
        index = row
        while index < end:
            seen = min(PAGE_TOKENS, rows[index, POSITION] + 1 - begin)
            together = 4 if page[0] == c.KV_F32 and _all_see(rows, index, end, begin) else 1
            for member in range(group):
                q = d[c.Q] + index * d[c.Q_STRIDE] + 4 * (head * group + member) * size
                target = _partial(d, index, head * group + member, split)
                if together == 4:
                    _attend_page_by_four(d, q, page, target, scratch)
                elif seen > 0:
                    _attend_page(q, page, seen, size, target, scratch)
            index += together


@part
def _all_see(rows, index, end, begin):
    """Whether there are four rows from ``index`` that all see the whole page from ``begin``."""
    # Positions need not ascend, so each of them is looked at.
    lowest = rows[index, POSITION]
    for row in range(index, min(end, index + 4)):
        lowest = min(lowest, rows[row, POSITION])
    return index + 4 <= end and lowest + 1 - begin >= PAGE_TOKENS


@part
def _open_partial(d, partial):
    size = d[c.HEAD_DIM]
    clear(partial, size + c.PARTIAL_PADDING)
    floats(partial, size + 1)[size] = -np.inf


@part
def _page(d, slot, count, rows, scratch):
    """KV format, keys, their scales, values and their scales of ``count`` rows of the pools from ``slot``.

    For several rows, and in formats that no row reads as they are, they are expanded into ``scratch`` first,
    to the very floats that one row would read.
    """
    size, number = d[c.HEAD_DIM], d[c.KV_FORMAT]
    width = 4 if number == c.KV_F32 else (2 if number == c.KV_BF16 else 1)
    groups = size // c.GROUP
    keys, values = d[c.K_POOL] + slot * size * width, d[c.V_POOL] + slot * size * width
    key_scales, value_scales = d[c.K_SCALES] + 2 * slot * groups, d[c.V_SCALES] + 2 * slot * groups
    if number == c.KV_F32 or (rows == 1 and number < c.EXPANDED):
        return number, keys, key_scales, values, value_scales
    wide_keys = scratch + 4 * 4 * PAGE_TOKENS
    wide_values = wide_keys + 4 * PAGE_TOKENS * size
    if number >= c.EXPANDED:
        expand_page(d, slot, count, wide_keys, wide_values)
    elif number == c.KV_BF16:
        expand_bf16(keys, 0, count, size, wide_keys)
        expand_f16(values, 0, count, size, wide_values)
    else:
        expand_i8(keys, key_scales, count, size, wide_keys)
        expand_i8(values, value_scales, count, size, wide_values)
    return np.int64(c.KV_F32), wide_keys, key_scales, wide_values, value_scales


@part
def _partial(d, row, query, split):
    index = (row * d[c.QUERY_HEADS] + query) * d[c.MAX_SPLITS] + split
    return d[c.PARTIALS] + 4 * index * (d[c.HEAD_DIM] + c.PARTIAL_PADDING)


@part
def _attend_page(q, page, seen, size, target, scratch):
    """Online softmax over one page: maximum, sum and accumulated values of one query head."""
    number, keys, key_scales, values, value_scales = page
    score = floats(scratch, PAGE_TOKENS)
    page_scores(number, q, keys, key_scales, seen, size, scratch)
    for index in range(seen, PAGE_TOKENS):
        score[index] = -np.inf
    _soften(scratch, target, size)
    page_accumulate(number, scratch, values, value_scales, seen, size, target)


@part
def _attend_page_by_four(d, q, page, target, scratch):
    """As ``_attend_page`` for one query head of four rows that all see the whole page."""
    size = d[c.HEAD_DIM]
    stride = 4 * d[c.QUERY_HEADS] * d[c.MAX_SPLITS] * (size + c.PARTIAL_PADDING)
    scores_of_four(q, d[c.Q_STRIDE], page[1], size, scratch)
    for row in range(4):
        _soften(scratch + 4 * PAGE_TOKENS * row, target + stride * row, size)
    accumulate_four(scratch, page[3], size, target, stride)


@part
def _soften(scores, target, size):
    """A page's scores become weights; what was summed before shrinks to the new maximum."""
    state = floats(target + 4 * size, 2)
    largest = max(state[0], largest_of(scores, PAGE_TOKENS))
    if largest > state[0]:
        factor = np.float32(math.exp(state[0] - largest))
        state[0] = largest
        state[1] *= factor
        scale_row(target, size, factor)
    state[1] += exponentiate(scores, PAGE_TOKENS, largest)


@part
def merge(d, rows, task):
    """One row and query head: join its splits in order, normalise, gate."""
    row, query = task // d[c.QUERY_HEADS], task % d[c.QUERY_HEADS]
    size = d[c.HEAD_DIM]
    splits = split_count(rows[row, POSITION])
    largest = np.float32(-np.inf)
    for split in range(splits):
        largest = max(largest, floats(_partial(d, row, query, split) + 4 * size, 1)[0])
    y = d[c.Y] + row * d[c.Y_STRIDE] + 4 * query * size
    clear(y, size)
    total = np.float32(0)
    for split in range(splits):
        partial = _partial(d, row, query, split)
        state = floats(partial + 4 * size, 2)
        factor = np.float32(math.exp(state[0] - largest))
        total += factor * state[1]
        add_scaled(partial, y, size, factor)
    if d[c.KV_FORMAT] >= c.ROTATED_VALUES:
        rotate(y, size)
    gate = d[c.GATE] + row * d[c.GATE_STRIDE] + 4 * query * size
    gate_row(y, gate, size, np.float32(1) / total)
    if d[c.PERMUTED]:
        evens_first(y, d[c.PERMUTED] + row * d[c.PERMUTED_STRIDE] + 4 * query * size, size)
