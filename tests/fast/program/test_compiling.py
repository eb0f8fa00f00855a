"""What a start compiles: all that the model's rounds call, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ninfer.fast.memory.pages import FORMATS
from ninfer.fast.ops.attention import contract as attention
from ninfer.fast.ops.linear import formats
from ninfer.fast.ops.routines import ROUTINES
from ninfer.fast.program import compiling, operations
from ninfer.fast.program import table as t

Artifacts = Callable[..., Path]
ROOT = Path(__file__).parents[3]

# A fresh process serves a model; what its rounds called and its start had not made ready is printed.
_SERVE = """
import sys
from pathlib import Path
from ninfer.fast.ops.routines import ROUTINES
from tests.fast.program.test_program import Block, Row, opened, prompt, sampler, taken_in
with opened(Path(sys.argv[1]), kv_format=sys.argv[2]) as program:
    program.warm_up()
    ready = {name for name, routine in ROUTINES.items() if routine.is_ready}
    lane, row = taken_in(program, prompt(1, 200))
    program.round([Row(lane, program.first(lane, row, sampler()), sampler())])
    block = Block(lane, prompt(2, 7), sampler())
    program.verify([block])
    program.commit([block], [3])
print("late:", *sorted({name for name, routine in ROUTINES.items() if routine.is_ready} - ready))
"""


def test_every_operation_has_a_routine() -> None:
    grouped = [opcode for members in operations.GROUPS.values() for opcode in members]
    assert sorted(grouped) == list(range(t.KEEP + 1))


def test_a_model_needs_its_own_formats_and_operations_only() -> None:
    dense = {t.EMBED, t.LINEAR, t.ATTEND, t.SCAN}
    names = compiling.needed(dense, [formats.BF16], [formats.F32, formats.BF16], attention.KV_BF16)
    assert {name for name in names if name.startswith("round.")} == {
        "round.dense", "round.attention", "round.select"
    }  # fmt: skip
    assert [name for name in names if name.startswith("linear.")] == [
        "linear.column.bf16",
        "linear.tiles.bf16",
    ]
    assert "attention.expand_fp8" not in names
    experts = compiling.needed({*dense, t.EXPAND}, [formats.PAIRS], [formats.Q4], None)
    assert {"round.experts", "linear.tiles.q4", "linear.tiles.pairs", "embedding.q4"} <= set(experts)


def test_all_formats_and_operations_together_need_every_routine() -> None:
    needed = {
        name
        for kv_format in FORMATS.values()
        for name in compiling.needed(
            set(range(t.ATTEND_CHUNK + 1)), [formats.PAIRS], formats.NAMES.values(), kv_format
        )
    }
    assert needed == set(ROUTINES)


@pytest.mark.parametrize(("kind", "recipe", "kv_format"), [("dense", "bf16", "bf16"), ("moe", "q4", "k8v4")])
def test_rounds_call_nothing_that_the_start_forgot(
    artifact: Artifacts, kind: str, recipe: str, kv_format: str
) -> None:
    command = [sys.executable, "-c", _SERVE, str(artifact(kind, recipe)), kv_format]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert found.stdout.strip() == "late:"
