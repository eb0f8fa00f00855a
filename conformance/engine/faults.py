"""Faults to plant in a program from outside, each one that a campaign must notice.

A fault rewrites descriptors, control tables or memory of a ``Program`` that is otherwise the product's own;
the product has no switch. ``FAULTS`` names them and says what each needs to show.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.engine.draws import PAGE, ModelDraw
from conformance.engine.planting import (
    Fault,
    Hook,
    Plant,
    around,
    floats_at,
    operations,
    sampler_fault,
    swap_first_two,
)
from ninfer.fast.memory.pages import LayerPool
from ninfer.fast.ops.attention import contract as attention
from ninfer.fast.ops.control import BLOCK_TABLE, COMMIT, FIRST_ROW, POSITION, STATE, TOKEN
from ninfer.fast.ops.gdn import contract as gdn
from ninfer.fast.ops.linear import contract as linear
from ninfer.fast.ops.linear import formats
from ninfer.fast.ops.moe import contract as moe
from ninfer.fast.ops.select import contract as select
from ninfer.fast.program import table as t
from ninfer.fast.program.prefill import Chunk
from ninfer.fast.program.program import Program

# --- pages and positions ---------------------------------------------------------------------------------


def wrong_page_at_a_border(program: Program) -> None:
    """The first token of a page goes to the page before."""
    runner, kept = program._runner, list[int]()
    tables = list[npt.NDArray[np.int32]]()  # rows point into them

    def before(index: int, rows: int, blocks: int) -> None:
        kept[:] = runner.rows[:rows, BLOCK_TABLE]
        for row in runner.rows[:rows]:
            place = int(row[POSITION])
            if place and place % PAGE == 0:
                pages = (ctypes.c_int32 * (place // PAGE + 1)).from_address(int(row[BLOCK_TABLE]))
                tables.append(np.array(pages, np.int32))
                tables[-1][-1] = tables[-1][-2]
                row[BLOCK_TABLE] = tables[-1].ctypes.data

    def after(index: int, rows: int, blocks: int) -> None:
        runner.rows[:rows, BLOCK_TABLE] = kept

    around(program, t.APPEND, True, before, after)


def one_key_too_few_at_the_end_of_a_page(program: Program) -> None:
    """The last token of a page does not see itself."""
    runner = program._runner

    def shift(by: int) -> Hook:
        def hook(index: int, rows: int, blocks: int) -> None:
            last = last_rows if by > 0 else np.flatnonzero(runner.rows[:rows, POSITION] % PAGE == PAGE - 1)
            last_rows[:] = last
            runner.rows[last, POSITION] += by

        return hook

    last_rows: Any = []
    around(program, t.ATTEND, True, shift(-1), shift(1))


def shared_page(program: Program) -> None:
    """Two lanes are given the same last page."""
    assert program.pages is not None
    pool, inner = program.pages, program.pages.allocate

    def allocate(count: int) -> list[int]:
        pages = inner(count)
        pool._free.append(pages[-1])
        return pages

    pool.allocate = allocate  # type: ignore[method-assign]


def chunk_reads_a_wrong_page(program: Program) -> None:
    """A later chunk of a prompt finds its second page where its first one is."""
    inner = program._prefill.run

    def run(chunk: Chunk) -> npt.NDArray[np.float32]:
        if chunk.start > PAGE:
            pages = chunk.block_table.copy()
            pages[0] = pages[1]
            chunk = dataclasses.replace(chunk, block_table=pages)
        return inner(chunk)

    program._prefill.run = run  # type: ignore[method-assign]


def missing_last_chunk_row(program: Program) -> None:
    """The key and value of a chunk's last token are not written."""
    inner = program._runner.run
    long, short = (set(operations(program, t.APPEND, in_round=rounds)) for rounds in (False, True))

    def run(first: int, last: int, rows: int, blocks: int) -> None:
        appends = long | short if (first, last) == program._table.chunk else long
        for index in range(first, last):
            inner(index, index + 1, rows - (index in appends and rows > 1), blocks)

    program._runner.run = run  # type: ignore[method-assign]


def rope_off_by_one(program: Program) -> None:
    """Rounds turn queries and keys one position too far."""
    runner = program._runner

    def before(index: int, rows: int, blocks: int) -> None:
        runner.rows[:rows, 2:5] += 1

    around(program, t.ROTARY, True, before, None)


def wrong_split_merge(program: Program) -> None:
    """Of the splits of a long context the last one is forgotten."""
    runner = program._runner

    def before(index: int, rows: int, blocks: int) -> None:
        d = runner.descriptors[index]
        size, heads, splits = (
            int(d[name]) for name in (attention.HEAD_DIM, attention.QUERY_HEADS, attention.MAX_SPLITS)
        )
        record = size + attention.PARTIAL_PADDING
        partials = floats_at(int(d[attention.PARTIALS]), rows * heads * splits * record)
        partials = partials.reshape(rows, heads, splits, record)
        for row, place in enumerate(runner.rows[:rows, POSITION]):
            last = int(place) // attention.SPLIT_TOKENS
            if last > 0:
                partials[row, :, last] = 0
                partials[row, :, last, size] = -np.inf  # its largest score: a weight of nothing

    around(program, t.MERGE, True, before, None)


def neighbours_kv_scale(program: Program) -> None:
    """Keys are read with the scale of the row behind them."""
    assert program.pages is not None
    descriptors = program._runner.descriptors
    for layer, pool in program.pages.layers.items():
        groups = pool.key_scales.shape[-1]
        room = np.zeros(pool.key_scales.size + groups, np.float16)
        scales = room[:-groups].reshape(pool.key_scales.shape)
        scales[:] = pool.key_scales
        descriptors[descriptors == pool.key_scales.ctypes.data] = scales.ctypes.data
        program.pages.layers[layer] = LayerPool(pool.keys, pool.values, scales, pool.value_scales)
    for index in operations(program, t.ATTEND, in_round=True):
        descriptors[index, attention.K_SCALES] += 2 * groups


# --- state -----------------------------------------------------------------------------------------------


def stale_conv_column(program: Program) -> None:
    """The newest column of one layer's window stays what it was, every fourth round."""
    runner = program._runner
    first = operations(program, t.CONVOLVE, in_round=True)[0]
    descriptor = runner.descriptors[first]
    channels, slots = int(descriptor[gdn.CHANNELS]), int(descriptor[gdn.TAPS]) - 1
    rounds, kept = [0], list[npt.NDArray[np.float32]]()

    def newest(blocks: int) -> list[npt.NDArray[np.float32]]:
        offset = int(descriptor[gdn.WINDOW_OFFSET]) + 4 * (slots - 1) * channels
        return [floats_at(block[STATE] + offset, channels) for block in runner.blocks[:blocks]]

    def before(index: int, rows: int, blocks: int) -> None:
        kept[:] = [column.copy() for column in newest(blocks)]

    def after(index: int, rows: int, blocks: int) -> None:
        rounds[0] += index == first
        if index == first and rounds[0] % 4 == 0:
            for column, old in zip(newest(blocks), kept, strict=True):
                column[:] = old

    around(program, t.CONVOLVE, True, before, after)


def skipped_state_commit(program: Program) -> None:
    """One layer's recurrent state does not move on, every fourth round."""
    runner, rounds = program._runner, [0]
    first = operations(program, t.RECUR, in_round=True)[0]

    def before(index: int, rows: int, blocks: int) -> None:
        rounds[0] += index == first
        if index == first and rounds[0] % 4 == 0:
            runner.blocks[:blocks, COMMIT] = 0

    def after(index: int, rows: int, blocks: int) -> None:
        runner.blocks[:blocks, COMMIT] = 1

    around(program, t.RECUR, True, before, after)


def unzeroed_slot(program: Program) -> None:
    """A state slot comes with what its last owner left."""
    states = program.states
    states.allocate = states._free.pop  # type: ignore[method-assign]


def state_lost_between_chunks(program: Program) -> None:
    """One layer of a later chunk begins with an empty state."""
    states, inner = program.states, program._prefill.run
    layer, offset = next(iter(states.state_offsets.items()))
    assert program.config.gdn is not None
    size = program.config.gdn
    shape = (size.value_heads, size.key_dim, size.value_dim)

    def run(chunk: Chunk) -> npt.NDArray[np.float32]:
        if chunk.start > 0:
            states.floats(chunk.slot, offset, shape)[:] = 0
        return inner(chunk)

    assert layer in states.window_offsets
    program._prefill.run = run  # type: ignore[method-assign]


def swapped_lanes(program: Program) -> None:
    """Two lanes of a round advance each other's convolution windows."""
    runner = program._runner

    def swap(index: int, rows: int, blocks: int) -> None:
        if blocks > 1:
            swap_first_two(runner.blocks, STATE)

    around(program, t.CONVOLVE, True, swap, swap)


def swapped_tokens(program: Program) -> None:
    """Two rows of a round take in each other's tokens."""
    runner = program._runner

    def swap(index: int, rows: int, blocks: int) -> None:
        if rows > 1:
            swap_first_two(runner.rows, TOKEN)

    around(program, t.EMBED, True, swap, None)


def rows_out_of_order(program: Program) -> None:
    """The first two blocks of a recurrent step read each other's rows."""
    runner = program._runner

    def swap(index: int, rows: int, blocks: int) -> None:
        if blocks > 1:
            swap_first_two(runner.blocks, FIRST_ROW)

    around(program, t.RECUR, True, swap, swap)


# --- weights ---------------------------------------------------------------------------------------------


def another_layers_decay(program: Program) -> None:
    """One layer decays with the parameters of the next."""
    first, second, *_ = operations(program, t.RECUR, in_round=True)
    descriptors = program._runner.descriptors
    descriptors[first, gdn.A_LOG] = descriptors[second, gdn.A_LOG]


def evens_and_odds(program: Program) -> None:
    """One matrix in a permuted format reads its activations in natural order."""
    segments, buffers = program._runner._table.segments, program._table.wiring.workspace._buffers
    natural = {
        buffers[f"{name}_evens"].address: buffer.address
        for name, buffer in buffers.items()
        if f"{name}_evens" in buffers
    }
    index = next(i for i, s in enumerate(segments) if s[linear.FORMAT] in formats.EVENS_FIRST)
    segments[index, linear.X] = natural[int(segments[index, linear.X])]


def neighbours_weight_scale(program: Program) -> None:
    """One matrix reads the scales of the row behind each (and stops one row early)."""
    segments = program._runner._table.segments
    index = next(i for i, s in enumerate(segments) if s[linear.SCALE])
    segments[index, linear.ROWS] -= 1
    segments[index, linear.SCALE] += segments[index, linear.SCALE_STRIDE]


def wrong_expert_weight(program: Program) -> None:
    """The strengths of the first two experts are exchanged."""
    runner = program._runner

    def after(index: int, rows: int, blocks: int) -> None:
        descriptor = runner.descriptors[index]
        count = int(descriptor[moe.PER_TOKEN])
        strengths = floats_at(descriptor[moe.WEIGHTS], rows * count).reshape(rows, count)
        strengths[:, [0, 1]] = strengths[:, [1, 0]]

    around(program, t.ROUTE, True, None, after)


def logits_in_bf16(program: Program) -> None:
    """Logits lose their low halves before the draw."""
    last = program._table.forward[1] - 1
    logits = program._table.logits.array

    def after(index: int, rows: int, blocks: int) -> None:
        if index == last:
            logits[:rows].view(np.uint32)[:] &= 0xFFFF0000

    around(program, t.LINEAR, True, None, after)


# --- the draw ----------------------------------------------------------------------------------------------


def tie_to_the_higher_id(program: Program) -> None:
    """Equal candidates are kept in descending order of id."""
    best = program._table.wiring._arrays["best"]
    words = 1 + 2 * select.CANDIDATES
    records = best.reshape(-1, words)

    def after(index: int, rows: int, blocks: int) -> None:
        for record in records[:rows]:
            ids = record[1 : 1 + select.CANDIDATES]
            values = record[1 + select.CANDIDATES :].view(np.float32)
            for place in range(int(record[0]) - 1):
                if values[place] == values[place + 1]:
                    ids[[place, place + 1]] = ids[[place + 1, place]]
            if record[0] == 1 and ids[0] % 2 == 0:
                ids[0] += 1  # greedy keeps one candidate; its twin is the next id

    around(program, t.SCAN, False, None, after)


def _set(field: str, value: Callable[[Any], Any]) -> Plant:
    def change(samplers: Any, index: int) -> None:
        samplers[index][field] = value(samplers[index][field])

    return sampler_fault(change)


def _first_rows_counts(samplers: Any, index: int) -> None:
    samplers[index]["counts"] = samplers[0]["counts"]


_MOE = ModelDraw(kind="moe", recipe="bf16")
_QUANTISED = ModelDraw(recipe="q4")

FAULTS: dict[str, Fault] = {
    "wrong_page_at_a_border": Fault(wrong_page_at_a_border),
    "one_key_too_few_at_the_end_of_a_page": Fault(one_key_too_few_at_the_end_of_a_page),
    "shared_page": Fault(shared_page),
    "chunk_reads_a_wrong_page": Fault(chunk_reads_a_wrong_page),
    "missing_last_chunk_row": Fault(missing_last_chunk_row),
    "rope_off_by_one": Fault(rope_off_by_one),
    "wrong_split_merge": Fault(wrong_split_merge, ModelDraw(layers="GA", shape="lean"), long=True),
    "neighbours_kv_scale": Fault(neighbours_kv_scale, kv_format="int8"),
    "stale_conv_column": Fault(stale_conv_column),
    "skipped_state_commit": Fault(skipped_state_commit),
    "unzeroed_slot": Fault(unzeroed_slot),
    "state_lost_between_chunks": Fault(state_lost_between_chunks),
    "swapped_lanes": Fault(swapped_lanes),
    "swapped_tokens": Fault(swapped_tokens),
    "rows_out_of_order": Fault(rows_out_of_order),
    "another_layers_decay": Fault(another_layers_decay),
    "evens_and_odds": Fault(evens_and_odds, _QUANTISED),
    "neighbours_weight_scale": Fault(neighbours_weight_scale, _QUANTISED),
    "wrong_expert_weight": Fault(wrong_expert_weight, _MOE),
    "logits_in_bf16": Fault(logits_in_bf16),
    "tie_to_the_higher_id": Fault(tie_to_the_higher_id, ModelDraw(twins=True)),
    "dropped_penalty": Fault(_set("presence", lambda value: 0)),
    "neighbours_counts": Fault(sampler_fault(_first_rows_counts)),
    "wrong_seed_position": Fault(_set("position", lambda value: value + 1)),
    "half_a_seed": Fault(_set("seed", lambda value: value & np.uint64(0xFFFFFFFF))),
    "one_candidate_too_many": Fault(_set("top_k", lambda value: value + 1 if value else 0)),
    "min_p_ignored": Fault(_set("min_p", lambda value: 0)),
}
