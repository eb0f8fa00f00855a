"""The suite itself, on Messages: each planted fault is caught by a handful of its own cases."""

from __future__ import annotations

import pytest

from conformance.http.cases import read_cases
from conformance.http.checks import ScriptedWorlds
from conformance.http.messages_faults import MESSAGES_FAULTS
from conformance.http.test_faults import caught
from conformance.http.wire_faults import WIRE_FAULTS

PROBES = [
    case
    for case in read_cases()
    if case.name
    in {
        "messages/scripted: blocks: text",
        "messages/scripted: blocks: thinking, text and a call",
        "messages/scripted: blocks: a stop sequence",
        "messages/scripted: blocks: a call alone",
        "messages/fields: wrong values: no room for output",
    }
]
# Faults of any protocol: framing, errors and heads.
SHARED = (
    "an unknown comment",
    "a blank line short",
    "a byte of JSON lost",
    "a 400 as 500",
    "an error as 200",
    "no request id",
)
FAULTS = MESSAGES_FAULTS | {name: WIRE_FAULTS[name] for name in SHARED}


def test_the_probes_pass_without_a_fault(scripted: ScriptedWorlds) -> None:
    assert len(PROBES) == 5
    assert caught(scripted(()), PROBES, None) == (0, 0)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(scripted: ScriptedWorlds, fault: str) -> None:
    spoilt, failed = caught(scripted(()), PROBES, FAULTS[fault])
    assert spoilt > 0, "the fault found nothing to spoil"
    assert failed > 0, f"{spoilt} spoilt answers passed every check"
