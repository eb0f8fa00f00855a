"""Routines: compiled at their first call, kept for the next process, never made twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# Adds up through a routine of either kind; prints whether each was in the cache and the sums.
_USE = """
import numpy as np
from numba import njit
from ninfer.fast.ops.routines import ROUTINES, emitted, routine
from ninfer.fast.ops.vector import F32
from ninfer.fast.ops.views import floats

@emitted("test.twice", "if")
def twice(e, address, factor):
    e.write(address, e.builder.fmul(e.read(address, F32, 4), factor), 4)

@routine("test.more", "ii")
def more(address, count):
    values = floats(address, count)
    for index in range(count):
        values[index] += index
        twice(address + 4 * index, np.float32(2))

@njit
def caller(address, count, wanted):
    if wanted:
        more(address, count)

x = np.ones(3, np.float32)
caller(x.ctypes.data, 3, False)
unasked = [name for name in ("test.twice", "test.more") if ROUTINES[name].is_ready]
stored = [name for name in ("test.twice", "test.more") if ROUTINES[name].load()]
for _ in range(2):
    caller(x.ctypes.data, 3, True)
print(unasked, stored, x.tolist())
"""


def use(cache: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NINFER_KERNEL_CACHE": str(cache)}
    command = [sys.executable, "-c", _USE]
    return subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


def test_a_routine_is_compiled_when_called_and_read_by_the_next_process(tmp_path: Path) -> None:
    # ((1 + i) · 2 + i) · 2
    sums = [4.0, 10.0, 16.0]
    assert use(tmp_path) == f"[] [] {sums}"
    assert use(tmp_path) == f"[] {['test.twice', 'test.more']} {sums}"


@pytest.mark.skipif(sys.platform != "linux", reason="how a process aborts is told of Linux")
def test_a_routine_that_cannot_be_compiled_ends_the_process_and_says_why(tmp_path: Path) -> None:
    broken = _USE.replace("values[index] += index", "values[index] += nothing")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NINFER_KERNEL_CACHE": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", broken], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == -6
    assert "nothing" in ended.stderr
