"""The tool that times rounds of copies runs whole rounds, on a program whose draws are given."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer.engine.settings import DraftSettings
from ninfer.fast.draft import speculation
from ninfer.fast.program.gpu.device import Waiter
from ninfer.sampling.parameters import SamplingParameters
from tests.fast.gpu.programs import small_artifact, small_program
from tests.support.nano import VOCABULARY
from tools.gpu_check import copy_rounds

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def test_copies_that_hold_are_timed_by_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = small_program(small_artifact(tmp_path)[0], 512, mtp=True)
    text = np.random.default_rng(0).integers(0, VOCABULARY, 600).astype(np.int32)

    def run(key: Any, launch: Callable[[], None]) -> None:
        if key[0] in ("finish", "head"):
            places = program._control.host_words[: key[1], 1]
            program._buffers.told.array[: key[1]] = text[np.clip(places, 0, 599)]

    for owner, name in ((Waiter, "wait"), (speculation, "accept")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # the tool's watch ends with the test
    monkeypatch.setattr(program._graphs, "run", run)
    monkeypatch.setattr(copy_rounds, "PROMPT", 20)
    monkeypatch.setattr(copy_rounds, "CONTEXT", 512)
    penalised = SamplingParameters(1.0, 0.95, 20, 0.0, 1.5, 0.0, 7)
    copy_rounds.cell(program, [DraftSettings("mtp", 1, copy_tokens=3)], penalised, 200)
    alone, _, copies, parts = capsys.readouterr().out.splitlines()
    assert alone.startswith("drafts=1 copies=0 rounds=")
    found = re.match(r"drafts=1 copies=3 rounds=(\d+) tokens=4.00 ms=", copies)
    assert found
    assert int(found[1]) > 30
    assert {"propose", "fill", "flush", "accept", "commit", "drawn", "graph_forward"} <= set(
        re.findall(r"(\w+)=", parts)
    )
    program.check_integrity()
