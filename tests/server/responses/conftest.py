"""One server of the nano model for the Responses tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ninfer.artifact import Artifact
from ninfer.prompt import Tokenizer
from tests.server.conftest import MODEL
from tests.server.inprocess import serving
from tests.server.responses.stage import THINKING, PlayingEngine, Stage


@pytest.fixture(scope="session")
def tokenizer(nano: Path) -> Tokenizer:
    with Artifact.open(nano) as artifact:
        names = ("tokenizer.json", "tokenizer_config.json")
        return Tokenizer.from_resources(*(artifact.resource("text", name) for name in names))


@pytest.fixture(scope="module")
def shared_stage(nano: Path, tokenizer: Tokenizer) -> Iterator[Stage]:
    engine = PlayingEngine()
    with serving(nano, engine, MODEL, limits={"stream_comment_after_s": 0.15}) as client:
        yield Stage(client, engine, tokenizer)


@pytest.fixture
def stage(shared_stage: Stage) -> Stage:
    """The module's server; every test begins with a thinking answer."""
    shared_stage.say(*THINKING)
    return shared_stage
