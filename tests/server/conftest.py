"""Artifacts, engines and servers that the server's tests share; each is made once per test process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from conformance.http.client import Client
from ninfer.engine.interface import SerialEngine
from ninfer.engine.settings import EngineSettings
from ninfer.reference.engine import open_engine
from tests.server.inprocess import serving
from tests.support.nano import nano_artifact

MODEL = ("--model-id", "nano")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A program that configures logging inside a test leaves no handler behind."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random-weight artifact with the real template and a small tokenizer."""
    return nano_artifact(tmp_path_factory.mktemp("nano"))


@pytest.fixture(scope="session")
def reference_engine(nano: Path) -> SerialEngine:
    torch.set_num_threads(1)
    return open_engine(EngineSettings("reference", str(nano), 8192))


@pytest.fixture(scope="session")
def reference(nano: Path, reference_engine: SerialEngine) -> Iterator[Client]:
    """A server of the nano model with its default options."""
    with serving(nano, reference_engine, MODEL) as client:
        yield client
