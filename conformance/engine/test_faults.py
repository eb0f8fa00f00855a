"""Every planted fault is caught by the smallest campaign, and a sound program passes it."""

from __future__ import annotations

import pytest

from conformance.engine.draws import ModelDraw
from conformance.engine.faults import FAULTS
from conformance.engine.models import Shelf
from conformance.engine.probe import probe

SOUND = sorted({(fault.model, fault.kv_format, fault.long) for fault in FAULTS.values()}, key=str)


@pytest.mark.parametrize(
    ("draw", "kv_format", "long"),
    SOUND,
    ids=[f"{draw.name}-{kv_format}{'-long' * long}" for draw, kv_format, long in SOUND],
)
def test_a_sound_program_passes(shelf: Shelf, draw: ModelDraw, kv_format: str, long: bool) -> None:
    assert probe(shelf.model(draw), None, kv_format, long) == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(shelf: Shelf, name: str) -> None:
    fault = FAULTS[name]
    objections = probe(shelf.model(fault.model), fault, fault.kv_format, fault.long)
    assert objections, f"{name} went unnoticed"
    print(f"{name}: {len(objections)} objections, the first: {objections[0][:160]}")
