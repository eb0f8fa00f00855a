"""Both engines agree on what the head's drafts come to: rounds, drafts, accepted ones, by place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conformance.engine.speculation.draws import draw_requests
from conformance.engine.speculation.drive import Asked, program_of, serve, token_bytes
from ninfer.engine.child import open_worker
from ninfer.engine.events import Delta, Finished
from ninfer.engine.settings import DraftSettings, EngineSettings
from ninfer.errors import ArtifactError
from ninfer.reference.engine import ReferenceEngine, open_engine
from tests.support.nano import nano_artifact


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_the_reference_counts_the_same_drafts(kind: str, tmp_path: Path) -> None:
    path = nano_artifact(tmp_path, kind)  # type: ignore[arg-type]
    settings = DraftSettings("mtp", 3)
    reference = open_engine(EngineSettings("reference", str(path), 512, draft=settings))
    assert isinstance(reference, ReferenceEngine)
    reference._token_bytes = token_bytes
    random = np.random.default_rng(4)
    asked = [Asked(one.request) for one in draw_requests(random, 12)]
    with program_of(path) as program:
        found, _ = serve(program, asked, settings)
    drafted = 0
    for one in asked:
        events = list(reference.generate(one.request, lambda: False, 0.0))
        tokens = [token for event in events if isinstance(event, Delta) for token in event.token_ids]
        end = events[-1]
        assert isinstance(end, Finished)
        assert tokens == found[one.request.id].tokens
        assert end.usage.draft == found[one.request.id].draft
        drafted += found[one.request.id].draft.drafted_tokens
    assert drafted > 300


@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_an_artifact_without_a_head_is_refused_by_name(engine: str, tmp_path: Path) -> None:
    """Case B44g: speculation asked for, no head in the checkpoint: the start says so."""
    path = nano_artifact(tmp_path, mtp=False)
    settings = EngineSettings(engine, str(path), 512, draft=DraftSettings("mtp", 3))
    with pytest.raises(ArtifactError, match=r"components\.mtp: missing: the artifact holds no MTP head"):
        open_worker(settings, lambda loaded, total: None, lambda event: None)
