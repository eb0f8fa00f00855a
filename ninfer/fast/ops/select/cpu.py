"""``select`` on CPUs: a scan of vocabulary slices, then one draw per row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.select import contract as c
from ninfer.fast.ops.select.philox import uniform
from ninfer.fast.ops.vector import F32, I16, LANES, VF32, VI32, Emitter, kernel
from ninfer.fast.ops.views import doubles, floats, integers, longs

_ALL_LANES = np.int64((1 << LANES) - 1)


@kernel("if", "f")
def _above(e: Emitter, address: Any, edge: Any) -> Any:
    """Which of sixteen floats are above ``edge`` or no numbers: bits of an integer, the first one lowest."""
    return _greater(e, e.load(address, "f32"), edge)


@kernel("iifff", "f")
def _penalised_above(e: Emitter, logits: Any, counts: Any, presence: Any, frequency: Any, edge: Any) -> Any:
    """As ``_above`` of sixteen logits less their penalties, each operation rounded as ``scan`` does."""
    builder = e.builder
    times = e.read(counts, VI32, 4)
    counted = builder.icmp_signed(">", times, e.ints([0] * LANES))
    absent = e.splat(builder.fmul(e.number(0.0), presence))
    flat = builder.select(counted, e.splat(presence), absent)
    penalty = e.fadd(flat, e.fmul(e.splat(frequency), builder.sitofp(times, VF32)))
    return _greater(e, builder.fsub(e.load(logits, "f32"), penalty), edge)


def _greater(e: Emitter, vector: Any, edge: Any) -> Any:
    above = e.builder.fcmp_unordered(">", vector, e.splat(edge))
    return e.builder.uitofp(e.builder.bitcast(above, I16), F32)


@part
def slice_count(d):
    """Slices of the vocabulary."""
    return (d[c.VOCABULARY] + c.SLICE - 1) // c.SLICE


@part
def _record(d, row, piece):
    """Best list of one row and slice: count word, ids [CANDIDATES], then values [CANDIDATES] float32.

    The values have twice the room they fill: ``draw`` puts float64 weights there.
    """
    return d[c.BEST] + (row * slice_count(d) + piece) * 8 * (1 + 2 * c.CANDIDATES)


@part
def scan(d, samplers, task):
    """One row and slice: penalise, mask and keep the best, descending, ties by id."""
    row, piece = task // slice_count(d), task % slice_count(d)
    sampler = samplers[row]
    first = piece * c.SLICE
    count = min(c.SLICE, d[c.VOCABULARY] - first)
    start = d[c.LOGITS] + row * d[c.LOGITS_STRIDE] + 4 * first
    logits = floats(start, count)
    presence, frequency = sampler.presence, sampler.frequency
    penalised = sampler.counts != 0 and (presence != 0 or frequency != 0)
    counts = integers(sampler.counts + 4 * first, count)
    words = integers(sampler.mask + 4 * (first // 32), count // 32 + 1)
    record = _record(d, row, piece)
    header, ids = longs(record, 1), longs(record + 8, c.CANDIDATES)
    values = floats(record + 8 * (1 + c.CANDIDATES), c.CANDIDATES)
    keep = 1 if sampler.temperature == 0 else c.CANDIDATES
    held, edge = np.int64(0), np.float32(-np.inf)
    drafts = integers(d[c.PENDING] + 4 * row * c.PENDING_WORDS, c.PENDING_WORDS)
    waiting = drafts[0] if penalised and d[c.PENDING] != 0 else 0
    at = 0
    for begin in range(0, count, LANES):
        end = min(count, begin + LANES)
        lanes = _ALL_LANES
        if end - begin == LANES:  # of most groups of sixteen few or none are among the best
            address = start + 4 * begin
            if not penalised:
                lanes = np.int64(_above(address, edge))
            elif at >= waiting or drafts[1 + at] >= first + end:
                counted = sampler.counts + 4 * (first + begin)
                lanes = np.int64(_penalised_above(address, counted, presence, frequency, edge))
        if lanes == 0:
            continue
        for index in range(begin, end):
            if lanes >> (index - begin) & 1 == 0:
                continue
            if sampler.mask != 0 and (words[index >> 5] >> (index & 31)) & 1 == 0:
                continue
            value = logits[index]
            if penalised:
                times = counts[index]
                while at < waiting and drafts[1 + at] <= first + index:
                    times += 1 if drafts[1 + at] == first + index else 0
                    at += 1
                flat = presence if times > 0 else np.float32(0) * presence
                value = value - (flat + frequency * np.float32(times))
            if not value < np.inf:
                header[0] = c.NOT_A_NUMBER
                return
            if value > edge or (held < keep and value > -np.inf):
                held = _insert(ids, values, held, keep, value, first + index)
                if held == keep:
                    edge = values[keep - 1]
    header[0] = held


@part
def _insert(ids, values, held, keep, value, token):
    """Insert behind every value that is not smaller: ids arrive ascending, so ties stay by id."""
    place = min(held, keep - 1)
    while place > 0 and values[place - 1] < value:
        if place < keep:
            values[place], ids[place] = values[place - 1], ids[place - 1]
        place -= 1
    values[place], ids[place] = value, token
    return min(held + 1, keep)


@part
def draw(d, samplers, row):
    """The token of one row: its slices' best joined in the first slice's record."""
    sampler = samplers[row]
    first = _record(d, row, np.int64(0))
    ids, values = longs(first + 8, c.CANDIDATES), floats(first + 8 * (1 + c.CANDIDATES), c.CANDIDATES)
    keep = 1 if sampler.temperature == 0 else (sampler.top_k if sampler.top_k > 0 else c.CANDIDATES)
    drawn = longs(d[c.DRAWN] + 8 * row, 1)
    held = min(longs(first, 1)[0], keep)
    for piece in range(slice_count(d)):
        record = _record(d, row, piece)
        found = longs(record, 1)[0]
        if found < 0:
            drawn[0] = found
            return
        if piece == 0:
            continue
        piece_ids = longs(record + 8, c.CANDIDATES)
        piece_values = floats(record + 8 * (1 + c.CANDIDATES), c.CANDIDATES)
        for index in range(found):
            if held < keep or piece_values[index] > values[keep - 1]:
                held = _insert(ids, values, held, keep, piece_values[index], piece_ids[index])
    if held == 0:
        drawn[0] = c.DEAD_END
    elif sampler.temperature == 0:
        drawn[0] = ids[0]
    else:
        weights = doubles(first + 8 * (1 + c.CANDIDATES), c.CANDIDATES)
        drawn[0] = _walk(sampler, ids, values, weights, held)


@part
def _walk(sampler, ids, values, weights, held):
    """Softmax, top-p, min-p and the draw over ``held`` candidates, all in float64.

    ``weights`` lie over ``values``, each over what is read no more when it is written.
    """
    top, total = np.float64(values[0]), 0.0
    for index in range(held - 1, -1, -1):
        weights[index] = math.exp((np.float64(values[index]) - top) / sampler.temperature)
    for index in range(held):
        total += weights[index]
    kept = held
    if sampler.top_p < 1:
        reached = 0.0
        for index in range(held):
            reached += weights[index] / total
            if reached >= sampler.top_p:
                kept = index + 1
                break
    remaining, total = 0, 0.0
    while remaining < kept and weights[remaining] > 0 and weights[remaining] >= sampler.min_p:
        total += weights[remaining]
        remaining += 1
    if remaining == 1:
        return ids[0]
    u, reached = uniform(sampler.seed, sampler.position), 0.0
    for index in range(remaining):
        reached += weights[index] / total
        if u < reached:
            return ids[index]
    return ids[remaining - 1]
