"""Suite-wide settings: Hypothesis profiles, one torch thread per worker, clause markers."""

from __future__ import annotations

import os
import secrets

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "campaign", deadline=None, max_examples=500, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("NINFER_TEST_PROFILE", "ci"))


@pytest.fixture
def campaign_seed() -> int:
    """A fresh seed for a campaign, printed so that a failure can be repeated (``NINFER_TEST_SEED``)."""
    seed = int(os.environ.get("NINFER_TEST_SEED", secrets.randbits(32)))
    print(f"campaign seed {seed} (repeat with NINFER_TEST_SEED={seed})")
    return seed
