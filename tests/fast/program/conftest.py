"""Nano artifacts, converted once per session and found by their recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.nano import nano_artifact

Artifacts = Callable[..., Path]


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    """``artifact(kind, recipe, **changes)``: the path of such a nano model."""
    built: dict[str, Path] = {}

    def build(kind: str, recipe: str = "bf16", **changes: Any) -> Path:
        key = repr((kind, recipe, sorted(changes.items())))
        if key not in built:
            directory = tmp_path_factory.mktemp("nano")
            built[key] = nano_artifact(directory, kind, recipe=recipe, **({"mtp": False} | changes))
        return built[key]

    return build
