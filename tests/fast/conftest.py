"""Kernels are compiled once for all tests of the fast engine; and torch has one thread.

Compiling takes some ten seconds where the kernel cache is empty: one worker does it while the others wait,
and the tests' own time limit does not count it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
import torch

from ninfer.fast.ops.cache import cache_directory
from ninfer.fast.ops.rms_norm import contract as rms_norm
from ninfer.fast.ops.routines import ROUTINES
from ninfer.fast.program.compiling import prepare
from ninfer.fast.program.round import RoundRunner
from ninfer.fast.program.table import NORM, TableBuilder

torch.set_num_threads(1)

COLD_LIMIT_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first pays for compiling, so any of them may take that long."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(COLD_LIMIT_S))


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compile, or load what another worker compiled: everything that a round may call."""
    directory = cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        builder = TableBuilder()
        builder.add(NORM, (0,) * rms_norm.FIELDS)
        runner = RoundRunner(builder.build(), 2)
        # No rows: nothing is touched.
        prepare(list(ROUTINES), len(os.sched_getaffinity(0)), lambda: runner.run(0, 1, 0, 0))
        runner.close()
