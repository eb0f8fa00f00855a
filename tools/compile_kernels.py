"""Compiles the fast engine's CPU kernels into the user's cache, where every later start finds them.

Example: ``python -m tools.compile_kernels``
"""

from __future__ import annotations

import os
import time

from ninfer.fast.ops.cache import cache_directory
from ninfer.fast.ops.routines import ROUTINES
from ninfer.fast.program.compiling import prepare
from ninfer.fast.program.round import RoundRunner
from ninfer.fast.program.table import TableBuilder


def main() -> None:
    """Run an empty range of a table, and have everything that a round may call."""
    builder = TableBuilder()
    builder.linear([])
    began = time.monotonic()
    print("compiling kernels for this processor ...", flush=True)
    runner = RoundRunner(builder.build(), 1)
    prepare(list(ROUTINES), len(os.sched_getaffinity(0)), lambda: runner.run(0, 0, 0, 0))
    runner.close()
    print(f"kernels ready after {time.monotonic() - began:.1f} s in {cache_directory()}")


if __name__ == "__main__":
    main()
