"""Servers on a GPU, asked over HTTP: started when first needed, skipped where there is no CUDA device.

``NINFER_STAND_IN=cpu`` runs on the CPU what makes sense there, to try the suite itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ninfer.fast.program.gpu.device import available
from tests.device.server import Servers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them are ``device`` tests."""
    for item in items:
        if "/tests/device/" in item.path.as_posix():
            item.add_marker(pytest.mark.device)


@pytest.fixture(scope="session")
def stand_in() -> bool:
    """Whether a CPU stands in for the device."""
    return os.environ.get("NINFER_STAND_IN") == "cpu"


@pytest.fixture(scope="session")
def cuda() -> None:
    """For what needs the device itself."""
    if not available():
        pytest.skip("needs a CUDA device and Triton")


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory, stand_in: bool) -> Iterator[Servers]:
    """Starts servers and ends them."""
    if not stand_in and not available():
        pytest.skip("needs a CUDA device and Triton (NINFER_STAND_IN=cpu tries the suite on a CPU)")
    servers = Servers(tmp_path_factory.mktemp("device"))
    yield servers
    servers.stop()
