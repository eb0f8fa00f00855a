"""What a round's operations consist of, as compiled parts: how many tasks, and how one is run.

Tasks of an operation are independent of each other; a chain's are its blocks of rows (``chains``).
"""

from __future__ import annotations

import numpy as np

from ninfer.fast.ops.attention import chunk
from ninfer.fast.ops.attention import contract as attention_contract
from ninfer.fast.ops.attention import cpu as attention
from ninfer.fast.ops.compiled import part
from ninfer.fast.ops.embedding import cpu as embedding
from ninfer.fast.ops.gdn import contract as gdn_contract
from ninfer.fast.ops.gdn import cpu as gdn
from ninfer.fast.ops.linear import cpu as linear
from ninfer.fast.ops.moe import cpu as moe
from ninfer.fast.ops.select import cpu as select
from ninfer.fast.ops.swiglu import cpu as swiglu
from ninfer.fast.program import operations
from ninfer.fast.program import table as t

# Claims of a thread in an operation whose tasks are short; the fewer, the longer the others wait at its end.
_CLAIMS = 8


@part
def task_count(opcode, d, segments, rows, row_count, blocks, block_count):
    """Tasks of one operation over ``row_count`` rows and ``block_count`` blocks."""
    if opcode == t.LINEAR:
        return linear.task_count(segments, d[0], d[1], row_count)
    if opcode == t.APPEND:
        return row_count * d[attention_contract.KV_HEADS]
    if opcode == t.ATTEND:
        return attention.attend_tasks(d, rows, row_count)
    if opcode == t.MERGE:
        return attention.merge_tasks(d, rows, row_count)
    if opcode == t.CONVOLVE:
        return gdn.conv_tasks(d, blocks, block_count)
    if opcode == t.RECUR or opcode == t.FOLD:
        return block_count * d[gdn_contract.VALUE_HEADS]
    if opcode == t.SHIFT:
        return block_count
    if opcode == t.SWIGLU:
        return swiglu.task_count(d, row_count)
    if opcode == t.EXPAND:
        return moe.expand_tasks(d, row_count)
    if opcode == t.CONTRACT:
        return moe.contract_tasks(d, row_count)
    if opcode == t.ATTEND_CHUNK:
        return chunk.chunk_tasks(d, row_count)
    if opcode == t.DECODE:
        return embedding.tile_tasks(d)
    if opcode == t.SCAN:
        return row_count * select.slice_count(d)
    return row_count


@part
def tasks_at_once(opcode, tasks, threads):
    """How many tasks a thread claims: several of those that take no longer than a claim."""
    short = opcode == t.NORM or opcode == t.APPEND or opcode == t.MERGE or opcode == t.SWIGLU
    if short or opcode == t.EMBED or opcode == t.ROTARY or opcode == t.KEEP:
        return max(1, tasks // (_CLAIMS * threads))
    return 1


@part
def run_task(opcode, d, segments, rows, first, row_count, blocks, block_count, samplers, task, thread):
    """One task; of matrices, that of ``row_count`` rows from row ``first``."""
    at, rows_at, blocks_at = d.ctypes.data, rows.ctypes.data, blocks.ctypes.data
    if opcode in operations.DELTA:
        operations.delta(opcode, at, blocks_at, block_count, task, thread)
    elif opcode in operations.ATTENTION:
        operations.attention(opcode, at, rows_at, row_count, task, thread)
    elif opcode in operations.CHUNK:
        operations.chunk(at, rows_at, row_count, task, thread)
    elif opcode in operations.EXPERTS:
        operations.experts(opcode, at, task, thread)
    elif opcode in operations.SELECT:
        operations.select(opcode, at, samplers.ctypes.data, task)
    else:
        operations.dense(opcode, at, segments.ctypes.data, rows_at, first, row_count, task, thread)


@part
def run_block(opcode, d, segments, rows, row_count, blocks, block_count, samplers, begin, end, thread):
    """All tasks of a row-by-row operation for the rows ``begin..end`` of ``row_count``."""
    if opcode == t.LINEAR:
        first, count, low = begin, end - begin, np.int64(0)
        high = linear.task_count(segments, d[0], d[1], count)
    else:
        first, count = np.int64(0), row_count
        each = task_count(opcode, d, segments, rows, row_count, blocks, block_count) // row_count
        low, high = each * begin, each * end
    for task in range(low, high):
        run_task(opcode, d, segments, rows, first, count, blocks, block_count, samplers, task, thread)
