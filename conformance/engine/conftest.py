"""One torch thread, a shelf of nano models for the session, and the suite's profiles and seeds."""

from __future__ import annotations

import pytest
import torch

from conformance.engine.models import Shelf
from tests.conftest import campaign_seed

__all__ = ["campaign_seed", "shelf"]

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("models"))
