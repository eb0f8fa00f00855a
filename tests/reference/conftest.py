"""One thread for every test of the reference (its tensors are far too small to share), and nano artifacts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.nano import nano_artifact

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def dense_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nano_artifact(tmp_path_factory.mktemp("dense"), "dense")


@pytest.fixture(scope="session")
def moe_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nano_artifact(tmp_path_factory.mktemp("moe"), "moe")


@pytest.fixture(scope="session")
def tied_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nano_artifact(tmp_path_factory.mktemp("tied"), "dense", tied=True)
