"""Has the compiled functions of a model before its first round: read from the cache, or compiled.

Numba compiles under one lock, so the cores of a machine share the work as processes: a child reads names of
routines, line by line, and answers when each is in the cache. What a table or a weight format needs and this
list forgot is compiled when a round first calls it.

Example (what ``Program.warm_up`` starts): ``python -m ninfer.fast.program.compiling``
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import ninfer
from ninfer.fast.ops.attention import contract as attention
from ninfer.fast.ops.routines import ROUTINES
from ninfer.fast.program import operations
from ninfer.fast.program import table as t

# By number of the weight format.
_FORMATS = ("f32", "bf16", "q8", "q6", "q5", "q4", "fp8", "nvfp4", "pairs")
# What a page is read and a row is written with, by KV format.
_PAGES = {
    attention.KV_F32: ("transpose_f32",),
    attention.KV_BF16: ("transpose_bf16", "expand_f16"),
    attention.KV_INT8: ("transpose_f32", "expand_i8"),
    attention.KV_FP8: ("transpose_f32", "expand_fp8"),
    attention.KV_NVFP4: ("transpose_f32", "expand_nvfp4", "store_nvfp4"),
    attention.KV_K8V4: ("transpose_f32", "expand_fp8", "expand_nvfp4", "store_nvfp4"),
}


def needed(
    opcodes: Collection[int], segments: Iterable[int], stored: Iterable[int], kv_format: int | None
) -> list[str]:
    """Names of the routines that rounds with these operations call; what takes longest to compile first.

    ``segments`` are the formats of the table's matrices, ``stored`` those of the artifact.
    """
    groups = [name for name, members in operations.GROUPS.items() if any(op in opcodes for op in members)]
    # Experts are no segments of the table.
    multiplied = {*segments, *(stored if t.EXPAND in opcodes else ())}
    matrices = [
        f"linear.{kind}.{_FORMATS[number]}" for number in sorted(multiplied) for kind in ("column", "tiles")
    ]
    rows = [f"embedding.{_FORMATS[number]}" for number in stored]
    pages = [] if kv_format is None else ["attend.4", "attend.2", "attend.1", *_PAGES[kv_format]]
    return [*groups, *matrices, *rows, *(f"attention.{name}" for name in pages)]


def prepare(names: Sequence[str], processes: int, first: Callable[[], None]) -> None:
    """Load these routines; ``processes`` compile missing ones, this one after ``first``."""
    missing: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        if not ROUTINES[name].load():
            missing.put(name)
    helpers = [
        threading.Thread(target=_feed, args=(missing,), name=f"ninfer-compile-{index}", daemon=True)
        for index in range(min(processes - 1, missing.qsize()))
    ]
    for helper in helpers:
        helper.start()
    first()
    while not missing.empty():
        with suppress(queue.Empty):
            ROUTINES[missing.get_nowait()].prepare()
    for helper in helpers:
        helper.join()
    for name in names:
        ROUTINES[name].prepare()  # also what a helper that failed left behind


def _feed(missing: queue.SimpleQueue[str]) -> None:
    """Give names to one child until none is left; one that ends early leaves them to others."""
    paths = [str(Path(ninfer.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        # Not before it is there: until then others can do more.
        while child.stdout.readline():
            try:
                name = missing.get_nowait()
            except queue.Empty:
                return
            print(name, file=child.stdin, flush=True)


def main() -> None:
    """Compile what is named on standard input."""
    print("ready", flush=True)
    for line in sys.stdin:
        ROUTINES[line.strip()].prepare()
        print("done", flush=True)


if __name__ == "__main__":
    main()
