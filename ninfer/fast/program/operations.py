"""The operations of a round as routines: what a model's table does not name is not compiled for it.

Each takes the number of one operation, the address of its descriptor and of the control tables, and a task.
"""

from __future__ import annotations

import numpy as np

from ninfer.fast.ops.attention import chunk as attention_chunk
from ninfer.fast.ops.attention import cpu as attention_cpu
from ninfer.fast.ops.control import BLOCK_FIELDS, COLUMNS, MAX_COLUMNS, ROW_FIELDS
from ninfer.fast.ops.embedding import cpu as embedding
from ninfer.fast.ops.gdn import contract as gdn_contract
from ninfer.fast.ops.gdn import cpu as gdn
from ninfer.fast.ops.linear import cpu as linear
from ninfer.fast.ops.linear.contract import SEGMENT_FIELDS
from ninfer.fast.ops.moe import cpu as moe
from ninfer.fast.ops.rms_norm import cpu as rms_norm
from ninfer.fast.ops.routines import routine
from ninfer.fast.ops.rows import cpu as rows_cpu
from ninfer.fast.ops.select import contract as select_contract
from ninfer.fast.ops.select import cpu as select_cpu
from ninfer.fast.ops.swiglu import cpu as swiglu
from ninfer.fast.ops.views import longs, records, rows_of
from ninfer.fast.program import table as t

# Which routine runs which operations; all others are ``dense``. The longest to compile first.
ATTENTION = (t.APPEND, t.ATTEND, t.MERGE)
DELTA = (t.CONVOLVE, t.RECUR, t.FOLD, t.SHIFT)
CHUNK = (t.ATTEND_CHUNK,)
DENSE = (t.EMBED, t.ROTARY, t.NORM, t.LINEAR, t.SWIGLU, t.KEEP, t.DECODE)
EXPERTS = (t.ROUTE, t.EXPAND, t.CONTRACT)
SELECT = (t.SCAN, t.DRAW)
GROUPS = {
    "round.attention": ATTENTION,
    "round.delta": DELTA,
    "round.dense": DENSE,
    "round.chunk": CHUNK,
    "round.experts": EXPERTS,
    "round.select": SELECT,
}

_table = rows_of(ROW_FIELDS)
_blocks = rows_of(BLOCK_FIELDS)
_segments = rows_of(SEGMENT_FIELDS)
_samplers = records(select_contract.PARAMETERS)


@routine("round.dense", "iiiiiiii")
def dense(opcode, descriptor, segments, rows, first, row_count, task, thread):
    """Embedding, norms, matrices and activations; matrices of ``row_count`` rows from row ``first``."""
    d = longs(descriptor, t.DESCRIPTOR_FIELDS)
    if opcode == t.LINEAR:
        linear.run_task(_segments(segments, d[1]), d[0], d[1], first, row_count, task)
    elif opcode == t.NORM:
        rms_norm.run_task(d, task)
    elif opcode == t.SWIGLU:
        swiglu.run_task(d, task)
    elif opcode == t.EMBED:
        embedding.run_task(d, _table(rows, row_count), task)
    elif opcode == t.ROTARY:
        attention_cpu.rotary_table(d, _table(rows, row_count), task)
    elif opcode == t.KEEP:
        rows_cpu.keep(d, _table(rows, row_count), task)
    else:
        embedding.decode_tile(d, task, thread)


@routine("round.attention", "iiiiii")
def attention(opcode, descriptor, rows, row_count, task, thread):
    """Attention of a round's rows."""
    d, table = longs(descriptor, t.DESCRIPTOR_FIELDS), _table(rows, row_count)
    if opcode == t.APPEND:
        attention_cpu.append(d, table, task)
    elif opcode == t.ATTEND:
        attention_cpu.attend(d, table, row_count, task, thread)
    else:
        attention_cpu.merge(d, table, task)


@routine("round.chunk", "iiiii")
def chunk(descriptor, rows, row_count, task, thread):
    """Attention of a prefill chunk."""
    attention_chunk.attend_chunk(
        longs(descriptor, t.DESCRIPTOR_FIELDS), _table(rows, row_count), row_count, task, thread
    )


@routine("round.delta", "iiiiii")
def delta(opcode, descriptor, blocks, block_count, task, thread):
    """Convolution and recurrence of linear attention."""
    d, table = longs(descriptor, t.DESCRIPTOR_FIELDS), _blocks(blocks, MAX_COLUMNS)
    if opcode == t.CONVOLVE:
        gdn.convolve(d, table, block_count, task)
    elif opcode == t.RECUR:
        gdn.recur(d, table, task, thread)
    elif opcode == t.FOLD:
        heads = d[gdn_contract.VALUE_HEADS]
        gdn.fold(d, table, task // heads, task % heads, thread)
    else:
        gdn.shift_window(d, table[task], table[task, COLUMNS], np.int64(0), d[gdn_contract.CHANNELS])


@routine("round.experts", "iiii")
def experts(opcode, descriptor, task, thread):
    """Mixture of experts."""
    d = longs(descriptor, t.DESCRIPTOR_FIELDS)
    if opcode == t.ROUTE:
        moe.route(d, task)
    elif opcode == t.EXPAND:
        moe.expand(d, task, thread)
    else:
        moe.contract(d, task, thread)


@routine("round.select", "iiii")
def select(opcode, descriptor, samplers, task):
    """The draw."""
    d, table = longs(descriptor, t.DESCRIPTOR_FIELDS), _samplers(samplers, MAX_COLUMNS)
    if opcode == t.SCAN:
        select_cpu.scan(d, table, task)
    else:
        select_cpu.draw(d, table, task)
