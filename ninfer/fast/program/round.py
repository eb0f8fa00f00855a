"""Runs a table of descriptors with a team of threads: one compiled call per half of a round.

Every operation is a number of independent tasks; threads take them from a counter and meet at a barrier
after the operation, so that who computes what never matters to a result. Helper threads wait inside
compiled code, spinning for a moment and then asleep on a semaphore, so that waking them costs
microseconds and idling nothing.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from ninfer.fast.ops.attention import chunk
from ninfer.fast.ops.attention import contract as attention_contract
from ninfer.fast.ops.attention import cpu as attention
from ninfer.fast.ops.compiled import entry, part
from ninfer.fast.ops.control import BLOCK_FIELDS, MAX_COLUMNS, ROW_FIELDS
from ninfer.fast.ops.embedding import cpu as embedding
from ninfer.fast.ops.gdn import contract as gdn_contract
from ninfer.fast.ops.gdn import cpu as gdn
from ninfer.fast.ops.linear import cpu as linear
from ninfer.fast.ops.linear.contract import FORMAT
from ninfer.fast.ops.moe import cpu as moe
from ninfer.fast.ops.select import contract as select_contract
from ninfer.fast.ops.select import cpu as select
from ninfer.fast.ops.swiglu import cpu as swiglu
from ninfer.fast.ops.team import LINE, TASK_BITS, TASK_MASK, fetch_add, load_acquire, rest, store_release
from ninfer.fast.ops.vector import I32, Emitter, kernel
from ninfer.fast.ops.views import longs
from ninfer.fast.program import compiling, operations
from ninfer.fast.program import table as t

# Words of the team's command block, each on its own cache line.
CLAIM, DONE, ROUND, SLEEPERS, STOP, ROWS, BLOCKS, COMMAND_WORDS = range(0, 8 * LINE, LINE)
# Some sixty microseconds, more than a busy worker needs between rounds: sleepers miss much of the next one.
_SPINS_BEFORE_SLEEP = 6000
# Claims of a thread in an operation whose tasks are short; the fewer, the longer the others wait at its end.
_CLAIMS = 8
# A semaphore of the C library is at most this large.
_SEMAPHORE_WORDS = 16


@kernel("i")
def _wait_semaphore(e: Emitter, semaphore: Any) -> None:
    e.call("sem_wait", I32, e.builder.inttoptr(semaphore, ir.PointerType(ir.IntType(8))))


@kernel("i")
def _post_semaphore(e: Emitter, semaphore: Any) -> None:
    e.call("sem_post", I32, e.builder.inttoptr(semaphore, ir.PointerType(ir.IntType(8))))


@part
def _task_count(opcode, d, segments, rows, row_count, blocks, block_count):
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
def _tasks_at_once(opcode, tasks, threads):
    """How many tasks a thread claims: several of those that take no longer than a claim."""
    short = opcode == t.NORM or opcode == t.APPEND or opcode == t.MERGE or opcode == t.SWIGLU
    if short or opcode == t.EMBED or opcode == t.ROTARY or opcode == t.KEEP:
        return max(1, tasks // (_CLAIMS * threads))
    return 1


@part
def _run_task(opcode, d, segments, rows, row_count, blocks, block_count, samplers, task, thread):
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
        operations.dense(opcode, at, segments.ctypes.data, rows_at, row_count, task, thread)


@entry
def _work(
    team, semaphore, thread, threads, begin, end, opcodes, descriptors, segments, rows, blocks, samplers
):
    """A thread's part: the leader (0) runs the operations ``begin..end``, a helper lives until STOP.

    Both in one function, so that everything they call becomes machine code once. The leader publishes one
    operation after the other and takes tasks of it; helpers take tasks too while a round runs (ROUND is odd)
    and sleep between rounds; nobody waits for a helper to come.
    """
    command = longs(team, COMMAND_WORDS)
    leads = thread == 0
    if leads and threads > 1:
        fetch_add(team + 8 * ROUND, 1)
        for _ in range(load_acquire(team + 8 * SLEEPERS)):
            _post_semaphore(semaphore)
    index, tasks, spins = begin, 0, np.int64(0)
    while True:
        if leads:
            if index == end:
                break
            tasks = _task_count(
                opcodes[index], descriptors[index], segments, rows, command[ROWS], blocks, command[BLOCKS]
            )
            store_release(team + 8 * DONE, 0)
            store_release(team + 8 * CLAIM, index << (2 * TASK_BITS) | tasks << TASK_BITS)
        elif load_acquire(team + 8 * STOP) != 0:
            break
        took = False
        while True:
            claim = load_acquire(team + 8 * CLAIM)
            if (claim & TASK_MASK) >= (claim >> TASK_BITS & TASK_MASK):
                break
            # What is seen here may be over by the next line; any number of tasks is a right one to take.
            some = _tasks_at_once(opcodes[claim >> (2 * TASK_BITS)], claim >> TASK_BITS & TASK_MASK, threads)
            claim = fetch_add(team + 8 * CLAIM, some)
            task, claimed = claim & TASK_MASK, claim >> (2 * TASK_BITS)
            last = min(task + some, claim >> TASK_BITS & TASK_MASK)
            if task >= last:
                break
            # The leader waits for every claimed task, so nothing of this round changes under it.
            d, opcode = descriptors[claimed], opcodes[claimed]
            for number in range(task, last):
                _run_task(
                    opcode,
                    d,
                    segments,
                    rows,
                    command[ROWS],
                    blocks,
                    command[BLOCKS],
                    samplers,
                    number,
                    thread,
                )
            fetch_add(team + 8 * DONE, last - task)
            took = True
        if leads:
            spins = np.int64(0)
            while load_acquire(team + 8 * DONE) < tasks:
                spins += 1
                rest(spins)
            index += 1
        else:
            spins = np.int64(0) if took else _idle(team, semaphore, spins)
    if leads and threads > 1:
        fetch_add(team + 8 * ROUND, 1)


@part
def _idle(team, semaphore, spins):
    """One idle moment of a helper: a pause, or sleep between rounds; the moments since it had work."""
    rest(spins + 1)
    current = load_acquire(team + 8 * ROUND)
    if spins < _SPINS_BEFORE_SLEEP or current % 2 == 1:
        return spins + 1
    fetch_add(team + 8 * SLEEPERS, 1)
    if load_acquire(team + 8 * ROUND) == current and load_acquire(team + 8 * STOP) == 0:
        _wait_semaphore(semaphore)
    fetch_add(team + 8 * SLEEPERS, -1)
    return 0


class RoundRunner:
    """The team of one model: owns its threads, command block and control tables.

    ``rows`` [at least MAX_COLUMNS, ROW_FIELDS], ``blocks`` [MAX_COLUMNS, BLOCK_FIELDS] int64 and ``samplers``
    [MAX_COLUMNS] are filled by the caller between runs. Not thread-safe: one worker owns it.
    """

    def __init__(self, table: t.Table, threads: int, rows: int = MAX_COLUMNS) -> None:
        self.rows = np.zeros((max(rows, MAX_COLUMNS), ROW_FIELDS), np.int64)
        self.blocks = np.zeros((MAX_COLUMNS, BLOCK_FIELDS), np.int64)
        self.samplers = np.zeros(MAX_COLUMNS, select_contract.PARAMETERS)
        self._table, self._threads = table, threads
        self._team = np.zeros(COMMAND_WORDS + 2 * LINE, np.int64)
        # Lines must not be shared with neighbours: start on a cache line.
        self._address = (self._team.ctypes.data + 63) // 64 * 64
        self._command = self._team[(self._address - self._team.ctypes.data) // 8 :]
        self._semaphore = np.zeros(_SEMAPHORE_WORDS, np.int64)
        self._semaphore_address = self._semaphore.ctypes.data
        ctypes.CDLL(None).sem_init(ctypes.c_void_p(self._semaphore_address), 0, 0)
        self._memory = (
            table.opcodes,
            table.descriptors,
            table.segments,
            self.rows,
            self.blocks,
            self.samplers,
        )
        self._helpers = [
            threading.Thread(target=self._help, args=(index,), name=f"round-{index}", daemon=True)
            for index in range(1, threads)
        ]
        for helper in self._helpers:
            helper.start()

    def _help(self, thread: int) -> None:
        # A bound method: the team's memory lives as long as its threads.
        self._enter(thread, 0, 0)

    def _enter(self, thread: int, begin: int, end: int) -> None:
        team = (self._address, self._semaphore_address)
        _work(*team, thread, self._threads, begin, end, *self._memory)

    def run(self, begin: int, end: int, rows: int, blocks: int) -> None:
        """Run the operations ``begin..end`` over the first ``rows`` rows and ``blocks`` blocks."""
        self._command[ROWS], self._command[BLOCKS] = rows, blocks
        self._enter(0, begin, end)

    def warm_up(self, stored: Sequence[int], kv_format: int | None) -> None:
        """Have what the table's operations call where weights are ``stored`` and pages written so."""
        opcodes, segments = self._table.opcodes.tolist(), self._table.segments[:, FORMAT].tolist()
        names = compiling.needed(set(opcodes), set(segments), stored, kv_format)
        compiling.prepare(names, self._threads, lambda: self.run(0, 0, 0, 0))

    @property
    def descriptors(self) -> t.Longs:
        """The table's descriptors; a caller may rewrite those of an operation it runs alone."""
        return self._table.descriptors

    def close(self) -> None:
        """End the helper threads."""
        if self._helpers:
            self._command[STOP] = 1
            self.run(0, 0, 0, 0)
            for helper in self._helpers:
                helper.join()
            self._helpers = []
