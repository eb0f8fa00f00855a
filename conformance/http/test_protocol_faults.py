"""The suite itself, on Messages and Responses: a handful of their own cases catches each planted fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from conformance.http.cases import Case, read_cases
from conformance.http.checks import ScriptedWorlds
from conformance.http.messages_faults import MESSAGES_FAULTS
from conformance.http.responses_faults import RESPONSES_FAULTS
from conformance.http.test_faults import caught
from conformance.http.wire_faults import WIRE_FAULTS, Spoil


@dataclass(frozen=True, slots=True)
class Suite:
    """``probes`` are names of cases; ``shared`` faults are of any protocol: framing, errors and heads."""

    probes: Sequence[str]
    own: Mapping[str, Spoil]
    shared: Sequence[str]

    @property
    def cases(self) -> list[Case]:
        return [case for case in read_cases() if case.name in self.probes]

    @property
    def faults(self) -> Mapping[str, Spoil]:
        return {**self.own, **{name: WIRE_FAULTS[name] for name in self.shared}}


SUITES = {
    "messages": Suite(
        (
            "messages/scripted: blocks: text",
            "messages/scripted: blocks: thinking, text and a call",
            "messages/scripted: blocks: a stop sequence",
            "messages/scripted: blocks: a call alone",
            "messages/fields: wrong values: no room for output",
        ),
        MESSAGES_FAULTS,
        (
            "an unknown comment",
            "a blank line short",
            "a byte of JSON lost",
            "a 400 as 500",
            "an error as 200",
            "no request id",
        ),
    ),
    "responses": Suite(
        (
            "responses/scripted: text: with a summary and the mirror",
            "responses/scripted: text: reasoning alone",
            "responses/scripted: text: reasoning, then an answer",
            "responses/scripted: calls: one name in and out of a namespace",
            "responses/scripted: calls: after thinking and text",
            "responses/scripted: calls: members keep the model's order",
            "responses/fields: wrong values, named: too hot",
        ),
        RESPONSES_FAULTS,
        (
            "an unknown comment",
            "a blank line short",
            "a byte of JSON lost",
            "another error code",
            "no param",
            "another envelope",
            "a 400 as 500",
            "an error as 200",
            "no request id",
        ),
    ),
}


@pytest.mark.parametrize(("protocol", "probes"), [("messages", 5), ("responses", 7)])
def test_the_probes_pass_without_a_fault(scripted: ScriptedWorlds, protocol: str, probes: int) -> None:
    cases = SUITES[protocol].cases
    assert len(cases) == probes
    assert caught(scripted(()), cases, None) == (0, 0)


@pytest.mark.parametrize(
    ("protocol", "fault"), [(name, fault) for name, suite in SUITES.items() for fault in suite.faults]
)
def test_a_planted_fault_is_caught(scripted: ScriptedWorlds, protocol: str, fault: str) -> None:
    suite = SUITES[protocol]
    spoilt, failed = caught(scripted(()), suite.cases, suite.faults[fault])
    assert spoilt > 0, "the fault found nothing to spoil"
    assert failed > 0, f"{spoilt} spoilt answers passed every check"
