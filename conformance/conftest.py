"""Options of the suite, and its report per clause.

pytest conformance/                                     # our own servers and engines
pytest conformance/ --base-url URL [--model --api-key]  # any live OpenAI-compatible server, over HTTP only
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.report import CLAUSE, clause_lines

_MARKS = ("clause", "clause_early")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption("--base-url", help="rate the server at this address instead of our own")
    group.addoption("--model", help="the model name to ask for; by default the server's first")
    group.addoption("--api-key", help="sent as a bearer token")
    group.addoption("--clauses", action="store_true", help="report every clause, not only failed ones")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A server elsewhere has no engine that could be rated."""
    rated = config.getoption("--base-url") is not None
    return True if rated and collection_path == Path(__file__).parent / "engine" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Each report carries the clauses of its test: those of its case, or else of its marks."""
    callspec = getattr(item, "callspec", None)
    case = None if callspec is None else callspec.params.get("case")
    clauses = getattr(case, "clauses", None)
    if clauses is None:
        clauses = [clause for name in _MARKS for mark in item.iter_markers(name) for clause in mark.args]
    for clause in dict.fromkeys(clauses):
        item.user_properties.append((CLAUSE, clause))
    return (yield)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    full = config.getoption("--clauses") or config.getoption("--base-url") is not None
    for line in clause_lines(terminalreporter.stats, full=full):
        terminalreporter.write_line(line)
