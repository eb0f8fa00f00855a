"""The suite itself, on Responses: each planted fault is caught by a handful of its own cases."""

from __future__ import annotations

import pytest

from conformance.http.cases import read_cases
from conformance.http.checks import ScriptedWorlds
from conformance.http.responses_faults import RESPONSES_FAULTS
from conformance.http.test_faults import caught
from conformance.http.wire_faults import WIRE_FAULTS

PROBES = [
    case
    for case in read_cases()
    if case.name
    in {
        "responses/scripted: text: with a summary and the mirror",
        "responses/scripted: text: reasoning alone",
        "responses/scripted: text: reasoning, then an answer",
        "responses/scripted: calls: one name in and out of a namespace",
        "responses/scripted: calls: after thinking and text",
        "responses/scripted: calls: members keep the model's order",
        "responses/fields: wrong values, named: too hot",
    }
]
# Faults of any protocol: framing, errors and heads.
SHARED = (
    "an unknown comment",
    "a blank line short",
    "a byte of JSON lost",
    "another error code",
    "no param",
    "another envelope",
    "a 400 as 500",
    "an error as 200",
    "no request id",
)
FAULTS = RESPONSES_FAULTS | {name: WIRE_FAULTS[name] for name in SHARED}


def test_the_probes_pass_without_a_fault(scripted: ScriptedWorlds) -> None:
    assert len(PROBES) == 7
    assert caught(scripted(()), PROBES, None) == (0, 0)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(scripted: ScriptedWorlds, fault: str) -> None:
    spoilt, failed = caught(scripted(()), PROBES, FAULTS[fault])
    assert spoilt > 0, "the fault found nothing to spoil"
    assert failed > 0, f"{spoilt} spoilt answers passed every check"
