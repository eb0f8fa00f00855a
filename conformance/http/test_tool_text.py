"""The tool parser behind the real server: golden texts as a model's tokens, whole and streamed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from conformance.http.cases import Case
from conformance.http.checks import ScriptedWorlds, check_case
from conformance.http.tool_cases import vector_cases

CASES = vector_cases()
BY_NAME = {case.name: case for case in CASES}


@pytest.mark.clause(
    "TOOLC-014",
    "TOOLP-001",
    "TOOLP-002",
    "TOOLP-003",
    "TOOLP-004",
    "TOOLP-005",
    "TOOLP-006",
    "TOOLP-007",
    "TOOLP-008",
    "TOOLP-009",
    "TOOLP-010",
    "TOOLP-011",
    "TOOLP-012",
    "TOOLP-013",
    "TOOLP-014",
    "TOOLP-015",
    "TOOLP-016",
    "TOOLP-017",
    "TOOLP-018",
    "TOOLP-019",
    "TOOLP-020",
    "TOOLP-021",
    "TOOLP-026",
    "TOOLP-028",
    "TOOLP-029",
    "TOOLP-030",
    "TOOLP-031",
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tool_text(scripted: ScriptedWorlds, case: Case) -> None:
    check_case(scripted(case.server or ()), case)


def test_every_clause_of_the_parser_has_its_texts(request: pytest.FixtureRequest) -> None:
    """The marks above and below are those that the golden cases name."""
    named = {clause for case in CASES for clause in case.clauses}
    marked = {
        clause
        for test in (test_tool_text, test_recovered_calls_are_told, test_the_request_log_tells_a_recovery)
        for mark in test.pytestmark  # type: ignore[attr-defined]
        if mark.name in ("clause", "clause_early")
        for clause in mark.args
    }
    assert marked == named


TRUNCATED = "tool calls recovered: 1 a strict reading refuses (truncated_tail)"


@pytest.mark.clause("TOOLP-022", "TOOLP-023", "TOOLP-024", "TOOLP-025", "TOOLP-027")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("trailing-prose-tolerated", TRUNCATED),
        (
            "a-broken-second-call-tolerated",
            TRUNCATED,
        ),
        (
            "cut-behind-a-complete-parameter",
            TRUNCATED,
        ),
        ("no-bracket-tolerated", TRUNCATED),
        ("stranded-in-thinking", "tool calls recovered: 1 from thinking"),
    ],
)
def test_recovered_calls_are_told(scripted: ScriptedWorlds, name: str, told: str) -> None:
    """One record of information for each answer, and no warning."""
    records = _records(scripted, BY_NAME[name])
    assert [told in record and " INFO " in record for record in records] == [True, True], records


@pytest.mark.clause("OPT-082")
def test_the_request_log_tells_a_recovery(scripted: ScriptedWorlds, tmp_path: Path) -> None:
    """The same words of a model: text without the option, a call with it, and the log says so."""
    strict, tolerant = BY_NAME["trailing-prose"], BY_NAME["trailing-prose-tolerated"]
    assert strict.says == tolerant.says
    found = []
    for number, case in enumerate((strict, tolerant)):
        log = tmp_path / f"{number}.jsonl"
        check_case(scripted((*(case.server or ()), "--request-log-jsonl", str(log))), case)
        done = _parses(log, 2)
        found.append({(parse["structured_call_count"], parse["tolerant_recovered"]) for parse in done})
    assert found == [{(0, False)}, {(1, True)}]


@pytest.mark.parametrize("name", ["trailing-prose", "no-container-closer"])
def test_a_text_that_stays_text_is_told(scripted: ScriptedWorlds, name: str) -> None:
    """One warning for each answer, in one line, with the beginning of the markup."""
    records = _records(scripted, BY_NAME[name])
    assert len(records) == 2, records
    for record in records:
        assert " WARNING " in record
        assert ": <tool_call> <function=" in record


def _parses(log: Path, count: int) -> list[Any]:
    """What the request log, which is written late, says of the markup of ``count`` finished requests."""
    deadline = time.monotonic() + 10
    while True:
        records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        found = [r["result"]["tool_call_parse"] for r in records if r["event"] == "request_done"]
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline, f"{len(found)} records of {count}"
        time.sleep(0.02)


def _records(scripted: ScriptedWorlds, case: Case) -> list[str]:
    """What the server says about tools while it answers ``case`` twice."""
    world = scripted(case.server or ())
    assert world.log is not None
    before = len(world.log())
    check_case(world, case)
    told = ("tool calls recovered", "tool markup")
    return [line for line in world.log()[before:].splitlines() if any(words in line for words in told)]
