"""The team of threads: who computes never matters to a result, nobody hangs, sleepers cost nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ninfer.fast.program.round import RoundRunner
from tests.fast.program import team_stress
from tests.fast.program.tables import ROWS, Stream
from tests.support.fast import Floats, assert_same_bits

ROOT = Path(__file__).parents[3]
LIMIT_S = 90


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("round-")]


def rounds(threads: int, count: int) -> Floats:
    stream = Stream()
    runner = RoundRunner(stream.table(), threads)
    for _ in range(count):
        runner.run(0, stream.operations, ROWS, 0)
    runner.close()
    return stream.values


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_any_number_of_threads_gives_the_same_bits(threads: int) -> None:
    one = rounds(1, 30)
    for _ in range(3):
        assert_same_bits(rounds(threads, 30), one)


def test_range_runs_its_operations_and_no_others() -> None:
    stream, whole = Stream(), rounds(1, 1)
    runner = RoundRunner(stream.table(), 2)
    for begin in range(stream.operations):
        before = stream.values
        runner.run(begin, begin + 1, ROWS, 0)
        # Norms (even) leave the stream alone, products (odd) change it.
        assert (stream.values == before).all() == (begin % 2 == 0)
    runner.close()
    assert_same_bits(stream.values, whole)


def test_rows_beyond_the_count_are_left_alone() -> None:
    stream = Stream()
    runner = RoundRunner(stream.table(), 2)
    runner.run(0, stream.operations, 5, 0)
    runner.close()
    assert_same_bits(stream.values[5:], stream.start[5:])
    assert (stream.values[:5] != stream.start[:5]).all()


def test_closing_ends_the_threads() -> None:
    before = helpers()
    stream = Stream()
    runner = RoundRunner(stream.table(), 4)
    assert len(helpers()) - len(before) == 3
    runner.run(0, stream.operations, ROWS, 0)
    runner.close()
    runner.close()
    assert helpers() == before


def cpu_seconds(threads: list[threading.Thread]) -> float:
    """Processor time that these threads have used so far."""
    clocks = [time.pthread_getcpuclockid(thread.ident) for thread in threads if thread.ident is not None]
    assert len(clocks) == len(threads)
    return sum(time.clock_gettime(clock) for clock in clocks)


def test_idle_helpers_sleep() -> None:
    stream, before = Stream(), helpers()
    runner = RoundRunner(stream.table(), 3)
    mine = [thread for thread in helpers() if thread not in before]
    try:
        for _ in range(2):
            runner.run(0, stream.operations, ROWS, 0)
            # They spin for a moment; on a busy machine that moment comes late.
            deadline, used = time.monotonic() + 60, -1.0
            while (now := cpu_seconds(mine)) - used >= 1e-4:
                assert time.monotonic() < deadline, "idle helpers use the processor"
                used = now
                time.sleep(0.4)
    finally:
        runner.close()
    assert_same_bits(stream.values, rounds(1, 2))


@pytest.fixture(scope="module")
def stressed() -> str:
    """What ``team_stress`` printed, in a process of its own: a team that hangs cannot be interrupted."""
    command = [sys.executable, "-m", "tests.fast.program.team_stress"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        printed, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        printed, _ = process.communicate()
    print(printed)
    return printed


@pytest.mark.parametrize("threads", team_stress.THREADS)
@pytest.mark.parametrize("scenario", team_stress.SCENARIOS)
def test_no_scenario_hangs_or_runs_an_operation_twice(stressed: str, scenario: str, threads: int) -> None:
    lines = [line for line in stressed.splitlines() if line.startswith(f"{scenario}-{threads}: ")]
    assert lines, f"still running after {LIMIT_S} s; what came before:\n{stressed}"
    assert lines[0].startswith(f"{scenario}-{threads}: ok "), lines[0]


def test_control_tables_are_the_callers() -> None:
    stream = Stream()
    runner = RoundRunner(stream.table(), 1, rows=200)
    assert len(runner.rows) == 200
    assert len(RoundRunner(stream.table(), 1, rows=3).rows) == 64
    assert runner.rows.dtype == runner.blocks.dtype == np.int64
