"""The worker over the GPU program, in Triton's interpreter: drafts and the prefix cache change no token."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest

from conformance.engine.speculation.drive import SPECIAL, token_bytes
from ninfer.engine.events import EngineEvent
from ninfer.engine.settings import DraftSettings
from ninfer.fast.draft.speculation import Speculation
from ninfer.fast.engine import FastWorker
from ninfer.fast.prefix.limits import resolve_limits
from ninfer.fast.program.program import Program
from tests.fast.gpu.programs import small_artifact, small_program
from tests.fast.test_prefix_speculation import CACHE, GREEDY, SEEDED, Served
from tests.support.nano import VOCABULARY

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
DRAFTS = DraftSettings("mtp", 3, copy_tokens=3, copy_match=4)


def talk(path: Path, together: bool) -> dict[str, tuple[int, list[int]]]:
    """Two conversations of two turns, with drafts and cache or with neither."""
    program = small_program(path, 192, mtp=True)
    events: list[EngineEvent] = []
    served = cast(Program, program)
    assert program.mtp is not None
    speculation = Speculation(served, DRAFTS, program.mtp, SPECIAL) if together else None  # type: ignore[arg-type]
    limits = resolve_limits(CACHE, 2, 64) if together else None
    worker = FastWorker(
        served, token_bytes, events.append, speculation=speculation, limits=limits, page_bytes=1024
    )
    asking = Served(worker, events)
    random, found = np.random.default_rng(2), dict[str, tuple[int, list[int]]]()
    histories = [random.integers(0, VOCABULARY, count).astype(np.int32) for count in (20, 66)]
    for turn in range(2):
        for which, history in enumerate(histories):
            asking.ask(f"{which}.{turn}", history, 12, SEEDED if which else GREEDY)
        asking.run()
        for which in range(2):
            name = f"{which}.{turn}"
            found[name] = asking.cached(name), asking.tokens(name)
            added = random.integers(0, VOCABULARY, 5)
            histories[which] = np.concatenate([histories[which], found[name][1], added]).astype(np.int32)
    return found


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_drafts_and_reused_prefixes_change_no_token(tmp_path: Path) -> None:
    path, _ = small_artifact(tmp_path)
    plain, drafted = (talk(path, together) for together in (False, True))
    assert {name: tokens for name, (_, tokens) in drafted.items()} == {
        name: tokens for name, (_, tokens) in plain.items()
    }
    assert drafted["1.1"][0] >= 64
