"""A request log's path for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.observe.lines import Log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "requests.jsonl")
