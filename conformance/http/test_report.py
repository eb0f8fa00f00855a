"""The report per clause: what held, what failed, what was not tried."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from conformance.report import CLAUSE, clause_lines


def report(*clauses: str) -> Any:
    return SimpleNamespace(user_properties=[(CLAUSE, clause) for clause in clauses])


STATS = {
    "passed": [report("A-001"), report("A-001", "A-002"), report()],
    "failed": [report("A-002")],
    "skipped": [report("A-003"), SimpleNamespace()],
}


def test_every_clause_has_a_line() -> None:
    lines = list(clause_lines(STATS, full=True))
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["A-001", "held"],
        ["A-002", "failed"],
        ["A-003", "not"],
    ]
    assert "1 failed, 1 passed" in lines[2]
    assert lines[-1].strip() == "1 held, 1 failed, 1 not tried"


def test_in_short_only_failed_ones_have() -> None:
    lines = list(clause_lines(STATS, full=False))
    assert [line.split()[0] for line in lines] == ["clauses", "A-002", "1"]


def test_a_run_without_clauses_says_nothing() -> None:
    assert list(clause_lines({"passed": [report()]}, full=True)) == []
