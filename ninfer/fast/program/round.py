"""Runs a table of descriptors with a team of threads: one compiled call per half of a round.

Every operation, in wide rounds every chain of them, is a number of independent tasks; threads take them from
a counter and meet at a barrier after the last one, so that who computes what never matters to a result.
Helper threads wait inside compiled code, spinning for a moment and then asleep on a semaphore, so that waking
them costs microseconds and idling nothing.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from ninfer.fast.ops.compiled import entry, part
from ninfer.fast.ops.control import BLOCK_FIELDS, MAX_COLUMNS, ROW_FIELDS
from ninfer.fast.ops.linear.contract import FORMAT
from ninfer.fast.ops.select import contract as select_contract
from ninfer.fast.ops.team import LINE, TASK_BITS, TASK_MASK, fetch_add, load_acquire, rest, store_release
from ninfer.fast.ops.vector import I32, Emitter, kernel
from ninfer.fast.ops.views import longs
from ninfer.fast.program import compiling
from ninfer.fast.program import table as t
from ninfer.fast.program.chains import block_rows, chain_ends
from ninfer.fast.program.tasks import run_block, run_task, task_count, tasks_at_once

# Words of the team's command block, those that threads write each on its own cache line.
CLAIM, DONE, ROUND, SLEEPERS, STOP, COMMAND = range(0, 6 * LINE, LINE)
# What the leader's caller wrote: rows and blocks of the round, where its range of operations ends, and how
# many rows a block of a chain has (0: every operation runs alone).
ROWS, BLOCKS, END, CHAINED = range(COMMAND, COMMAND + 4)
COMMAND_WORDS = COMMAND + LINE
# Some sixty microseconds, more than a busy worker needs between rounds: sleepers miss much of the next one.
_SPINS_BEFORE_SLEEP = 6000
# A semaphore of the C library is at most this large.
_SEMAPHORE_WORDS = 16


@kernel("i")
def _wait_semaphore(e: Emitter, semaphore: Any) -> None:
    e.call("sem_wait", I32, e.builder.inttoptr(semaphore, ir.PointerType(ir.IntType(8))))


@kernel("i")
def _post_semaphore(e: Emitter, semaphore: Any) -> None:
    e.call("sem_post", I32, e.builder.inttoptr(semaphore, ir.PointerType(ir.IntType(8))))


@part
def _last(ends, command, index):
    """Where the next barrier is: behind the operation, or its chain."""
    return index + 1 if command[CHAINED] == 0 else max(index + 1, min(ends[index], command[END]))


@part
def _tasks(opcodes, ends, descriptors, segments, rows, blocks, command, index):
    """Tasks up to the next barrier."""
    if _last(ends, command, index) > index + 1:
        return (command[ROWS] + command[CHAINED] - 1) // command[CHAINED]
    opcode, d = opcodes[index], descriptors[index]
    return task_count(opcode, d, segments, rows, command[ROWS], blocks, command[BLOCKS])


@part
def _run(opcodes, ends, descriptors, segments, rows, blocks, samplers, command, index, task, thread):
    """One task of an operation, or one block of rows through its chain."""
    count, last = command[ROWS], _last(ends, command, index)
    if last == index + 1:
        opcode, d, first = opcodes[index], descriptors[index], np.int64(0)
        run_task(opcode, d, segments, rows, first, count, blocks, command[BLOCKS], samplers, task, thread)
        return
    begin = task * command[CHAINED]
    end = min(count, begin + command[CHAINED])
    for number in range(index, last):
        opcode, d = opcodes[number], descriptors[number]
        run_block(opcode, d, segments, rows, count, blocks, command[BLOCKS], samplers, begin, end, thread)


@entry
def _work(
    team, semaphore, thread, threads, begin, end, opcodes, ends, descriptors, segments, rows, blocks, samplers
):
    """A thread's part: the leader (0) runs the operations ``begin..end``, a helper lives until STOP.

    Both in one function, so that everything they call becomes machine code once. The leader publishes one
    operation or chain after the other and takes tasks of it; helpers take tasks too while a round runs (ROUND
    is odd) and sleep between rounds; nobody waits for a helper to come.
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
            tasks = _tasks(opcodes, ends, descriptors, segments, rows, blocks, command, index)
            if tasks == 1:  # to tell others would take longer
                zero = np.int64(0)
                _run(
                    opcodes, ends, descriptors, segments, rows, blocks, samplers, command, index, zero, thread
                )
                index = _last(ends, command, index)
                continue
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
            seen = claim >> (2 * TASK_BITS)
            some = 1
            if _last(ends, command, seen) == seen + 1:
                some = tasks_at_once(opcodes[seen], claim >> TASK_BITS & TASK_MASK, threads)
            claim = fetch_add(team + 8 * CLAIM, some)
            task, claimed = claim & TASK_MASK, claim >> (2 * TASK_BITS)
            last = min(task + some, claim >> TASK_BITS & TASK_MASK)
            if task >= last:
                break
            # The leader waits for every claimed task, so nothing of this round changes under it.
            for number in range(task, last):
                _run(
                    opcodes,
                    ends,
                    descriptors,
                    segments,
                    rows,
                    blocks,
                    samplers,
                    command,
                    claimed,
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
            index = _last(ends, command, index)
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
            chain_ends(table.opcodes),
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
        command = self._command  # four assignments: one of a slice takes longer, in every round
        command[ROWS], command[BLOCKS], command[END] = rows, blocks, end
        command[CHAINED] = block_rows(rows, self._threads)
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
