"""Schemathesis reads the OpenAPI document and asks the server everything it can think of."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ninfer import spec
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.inprocess import serving

# What the document cannot say: bodies that its schema allows and the template refuses are honest 400s.
LEFT_OUT = "positive_data_acceptance"


def test_nothing_it_sends_breaks_the_document(nano: Path, tmp_path: Path) -> None:
    fuzz(nano, tmp_path, "--max-examples", "25", "--seed", "1", "--no-shrink")


@pytest.mark.campaign
def test_nothing_it_sends_for_long_breaks_the_document(
    nano: Path, tmp_path: Path, campaign_seed: int
) -> None:
    fuzz(nano, tmp_path, "--max-time", "120", "--seed", str(campaign_seed))


def fuzz(nano: Path, directory: Path, *arguments: str) -> None:
    """Statuses, headers and bodies are as documented; wrong data is refused; nothing is a 5xx."""
    document = copy.deepcopy(spec.document("http/openapi"))
    for name in ("ChatRequest", "ResponsesRequest"):
        document["components"]["schemas"][name]["properties"]["model"] = {"const": "nano"}
    (directory / "openapi.json").write_text(json.dumps(document))
    engine = RecordingEngine()
    with serving(nano, engine, MODEL) as client:
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", client.base_url),
            *("--phases", "examples,coverage,fuzzing", "--exclude-checks", LEFT_OUT),
            *("--continue-on-failure", "--no-color", "--generation-database", ":memory:"),
            *arguments,
        ]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        assert client.get("/health").status == 200
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert len(engine.requests) > 5, "too few requests were good enough to reach the engine"
