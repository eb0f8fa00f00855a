"""Entries and parts: a part becomes machine code inside its entries only, and only entries are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ninfer.fast.ops.cache import cache_key
from ninfer.fast.ops.select import philox

PROGRAM = """
from ninfer.fast.ops.compiled import entry, part
import sys


@part
def doubled(x):
    return x + x


@part
def quadrupled(x):
    return doubled(doubled(x))


@entry
def first(x):
    return quadrupled(x) + 1


@entry
def second(x):
    return doubled(x) - 1


print(first(5), second(5), sum(sum(f.stats.cache_hits.values()) for f in (first, second)))
"""


def test_parts_serve_several_entries_and_only_entries_are_kept(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = os.environ | {"NINFER_KERNEL_CACHE": str(tmp_path / "kernels")}
    root = Path(__file__).parents[3]
    answers = [
        subprocess.run(
            [sys.executable, str(program)],
            env=environment | {"PYTHONPATH": str(root)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert answers == [["21", "9", "0"], ["21", "9", "2"]]
    kept = (tmp_path / "kernels" / cache_key()).rglob("*.nbi")
    assert sorted(path.name.split("-")[0] for path in kept) == ["program.first", "program.second"]


def test_a_part_has_no_machine_code_of_its_own() -> None:
    philox.uniform.compile("(uint64, int64)")
    (compiled,) = philox.uniform.overloads.values()
    assert compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name) == 0
