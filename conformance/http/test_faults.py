"""The suite itself: each planted wire fault is caught by a handful of its own cases."""

from __future__ import annotations

from collections.abc import Sequence

import jsonschema
import pytest

from conformance.http.cases import Case, read_cases
from conformance.http.checks import ScriptedWorlds, World, check_case
from conformance.http.wire_faults import WIRE_FAULTS, FaultyClient, Spoil

# How a check says no; anything else would be a fault of the suite.
CAUGHT = (AssertionError, jsonschema.ValidationError, ValueError, KeyError)
PROBES = [
    case
    for case in read_cases()
    if case.name
    in {
        "chat/scripted: calls as the model makes them: members keep the model's order",
        "chat/scripted: calls as the model makes them: after text",
        "chat/scripted: calls as the model makes them: two calls in one token",
        "chat/scripted: calls as the model makes them: characters beyond ASCII",
        "chat/scripted: text and channels: thinking and answer",
        "chat/scripted: text and channels: cut by the limit",
        "chat/fields: streams: with usage",
        "chat/fields: wrong values, named: temperature too high",
        "transport/routes: routes that exist: health",
    }
]


def test_the_probes_pass_without_a_fault(scripted: ScriptedWorlds) -> None:
    assert len(PROBES) == 9
    assert caught(scripted(()), PROBES, None) == (0, 0)


@pytest.mark.parametrize("fault", WIRE_FAULTS)
def test_a_planted_fault_is_caught(scripted: ScriptedWorlds, fault: str) -> None:
    spoilt, failed = caught(scripted(()), PROBES, WIRE_FAULTS[fault])
    assert spoilt > 0, "the fault found nothing to spoil"
    assert failed > 0, f"{spoilt} spoilt answers passed every check"


def caught(world: World, probes: Sequence[Case], spoil: Spoil | None) -> tuple[int, int]:
    """How many answers were spoilt and how many probes failed."""
    client = FaultyClient(world.client.base_url, spoil=spoil or (lambda answer: answer))
    failed = 0
    for probe in probes:
        try:
            check_case(World(client, world.model), probe)
        except CAUGHT:
            failed += 1
    return len(client.spoilt), failed
