"""A small model with a prediction head, open for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.engine.speculation.drive import program_of
from ninfer.fast.program.program import Program
from tests.fast.program.conftest import Artifacts, artifact  # noqa: F401


@pytest.fixture(scope="module")
def program(artifact: Artifacts) -> Iterator[Program]:  # noqa: F811
    with program_of(artifact("dense", mtp=True)) as opened:
        yield opened
