"""Mixture of experts on CPUs; every row reads its own experts, so its result knows no neighbours."""

from __future__ import annotations

import math

import numpy as np

from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.copies import evens_first
from ninfer.fast.ops.linear.contract import SEGMENT_FIELDS
from ninfer.fast.ops.linear.cpu import run_rows
from ninfer.fast.ops.moe import contract as c
from ninfer.fast.ops.swiglu.cpu import product
from ninfer.fast.ops.views import clear, floats, longs

# A plain 1 would be a type of its own, and compile what it is given to once more.
_ONE = np.int64(1)


@part
def route(d, row):
    """The experts of one row and their weights."""
    experts, chosen = d[c.EXPERTS], d[c.PER_TOKEN]
    logits = floats(d[c.LOGITS] + row * d[c.LOGITS_STRIDE], experts)
    choice = longs(d[c.CHOICE] + 8 * row * chosen, chosen)
    weights = floats(d[c.WEIGHTS] + 4 * row * chosen, chosen)
    largest = logits[0]
    for expert in range(experts):
        largest = max(largest, logits[expert])
    total = np.float32(0)
    for expert in range(experts):
        total += np.float32(math.exp(logits[expert] - largest))
    kept = np.float32(0)
    for rank in range(chosen):
        best = -1
        for expert in range(experts):
            taken = False
            for earlier in range(rank):
                taken = taken or choice[earlier] == expert
            if not taken and (best < 0 or logits[expert] > logits[best]):
                best = expert
        choice[rank] = best
        weights[rank] = np.float32(math.exp(logits[best] - largest)) / total
        kept += weights[rank]
    for rank in range(chosen):
        weights[rank] /= kept


@part
def _slices(size):
    return (size + c.TASK_ROWS - 1) // c.TASK_ROWS


@part
def _segment(d, expert, which):
    return longs(d[c.TABLE] + 8 * (3 * expert + which) * SEGMENT_FIELDS, SEGMENT_FIELDS)


@part
def expand_tasks(d, rows):
    """Tasks of ``expand`` for ``rows`` rows."""
    return rows * d[c.PER_TOKEN] * _slices(d[c.WIDTH])


@part
def expand(d, task, thread):
    """One row, chosen expert and slice of its width: the gated product."""
    slices = _slices(d[c.WIDTH])
    pair, begin = task // slices, task % slices * c.TASK_ROWS
    row, end = pair // d[c.PER_TOKEN], min(d[c.WIDTH], begin + c.TASK_ROWS)
    expert = longs(d[c.CHOICE] + 8 * pair, 1)[0]
    x = d[c.X] + row * d[c.X_STRIDE]
    gate = d[c.SCRATCH] + thread * d[c.SCRATCH_STRIDE]
    up = gate + 4 * c.TASK_ROWS
    run_rows(_segment(d, expert, c.GATE), x, gate - 4 * begin, _ONE, begin, end)
    run_rows(_segment(d, expert, c.UP), x, up - 4 * begin, _ONE, begin, end)
    target = d[c.PRODUCTS] + pair * d[c.PRODUCTS_STRIDE] + 4 * begin
    # Whole groups of lanes are computed: those beyond the width must not hold what scratch held before.
    size, whole = end - begin, (end - begin + 31) // 32 * 32
    floats(gate, whole)[size:] = 0
    floats(up, whole)[size:] = 0
    if d[c.PERMUTED]:
        product(gate, up, gate, whole)
        evens_first(gate, target, whole)
    else:
        product(gate, up, target, whole)


@part
def contract_tasks(d, rows):
    """Tasks of ``contract`` for ``rows`` rows."""
    return rows * _slices(d[c.HIDDEN])


@part
def contract(d, task, thread):
    """One row and slice of the hidden size: routed experts in order, then the shared one, onto h."""
    slices = _slices(d[c.HIDDEN])
    row, begin = task // slices, task % slices * c.TASK_ROWS
    end = min(d[c.HIDDEN], begin + c.TASK_ROWS)
    size = end - begin
    scratch = d[c.SCRATCH] + thread * d[c.SCRATCH_STRIDE]
    part, total = floats(scratch, c.TASK_ROWS), floats(scratch + 4 * c.TASK_ROWS, c.TASK_ROWS)
    clear(scratch + 4 * c.TASK_ROWS, c.TASK_ROWS)
    for rank in range(d[c.PER_TOKEN]):
        pair = row * d[c.PER_TOKEN] + rank
        expert, weight = longs(d[c.CHOICE] + 8 * pair, 1)[0], floats(d[c.WEIGHTS] + 4 * pair, 1)[0]
        x = d[c.PRODUCTS] + pair * d[c.PRODUCTS_STRIDE]
        run_rows(_segment(d, expert, c.DOWN), x, scratch - 4 * begin, _ONE, begin, end)
        for index in range(size):
            total[index] += weight * part[index]
    score = floats(d[c.SHARED_SCORE] + row * d[c.SCORE_STRIDE], 1)[0]
    gate = np.float32(1) / (np.float32(1) + np.float32(math.exp(-score)))
    shared = floats(d[c.SHARED] + row * d[c.SHARED_STRIDE] + 4 * begin, size)
    h = floats(d[c.H] + row * d[c.H_STRIDE] + 4 * begin, size)
    for index in range(size):
        h[index] += total[index] + gate * shared[index]
