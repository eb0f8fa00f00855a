"""One torch thread, and a shelf of nano models for the session."""

from __future__ import annotations

import pytest
import torch

from conformance.engine.models import Shelf

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("models"))
