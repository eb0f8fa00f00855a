"""The worker over the GPU program, in Triton's interpreter: drafts and the prefix cache change no token."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from conformance.engine.speculation.drive import SPECIAL, token_bytes
from ninfer.engine.events import EngineEvent
from ninfer.engine.settings import DraftSettings
from ninfer.fast.draft.speculation import Speculation
from ninfer.fast.engine import FastWorker
from ninfer.fast.prefix.limits import resolve_limits
from ninfer.fast.program.program import Program
from tests.fast.gpu.programs import small_artifact, small_program
from tests.fast.test_prefix_speculation import CACHE, Served

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
    return Served(worker, events).talk((20, 66), turns=2, count=12, added=5)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_drafts_and_reused_prefixes_change_no_token(tmp_path: Path) -> None:
    path, _ = small_artifact(tmp_path)
    plain, drafted = (talk(path, together) for together in (False, True))
    assert {name: tokens for name, (_, tokens) in drafted.items()} == {
        name: tokens for name, (_, tokens) in plain.items()
    }
    assert drafted["1.1"][0] >= 64
