"""Which clauses of ``spec/clauses`` the tests prove, per heading and per owner.

    python -m tools.clauses                        # counts per heading and owner
    python -m tools.clauses --owner spine          # and the open and early clauses of one owner
    python -m tools.clauses --owner spine --check  # exit 1 when one of them is unproved

A test names the clauses it proves: ``@pytest.mark.clause("CHAT-001")`` when it does what the clause's
``check`` says, ``@pytest.mark.clause_early("CHAT-001")`` when it looks at the nearest point that exists.
Marks are read from the source (decorators, ``pytestmark``, ``marks=``) of ``tests/`` and ``conformance/``,
without importing it; cases that are data (``conformance/**/cases/**/*.json``) name theirs as ``clauses``. An
id that no clause has, an id that is not a literal and a mark on something that no test run would collect are
errors (exit 2).
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ninfer.spec.documents import parse, scan

ROOT = Path(__file__).parents[1]
TEST_FOLDERS = ("tests", "conformance")

State = Literal["proved", "early", "unproved"]
STATES: tuple[State, ...] = ("proved", "early", "unproved")
_MARKS: Mapping[str, State] = {"clause": "proved", "clause_early": "early"}
_NEVER_RUN = frozenset({"skip", "xfail"})


@dataclass(frozen=True, slots=True)
class Clause:
    """One requirement of ``spec/clauses``; ``heading`` is the part of the contract it comes from."""

    id: str
    must: str
    check: str
    owner: str
    heading: str


@dataclass(frozen=True, slots=True)
class Mark:
    """One clause id that a test names, and where."""

    clause: str
    state: State
    place: str


@dataclass(frozen=True, slots=True)
class Scan:
    """The marks found in some files, and what is wrong with others."""

    marks: tuple[Mark, ...]
    faults: tuple[str, ...]


def read_clauses(root: Path) -> dict[str, Clause]:
    """Every clause below ``root/clauses`` by id. Errors: ``ValueError`` when an id stands twice."""
    clauses: dict[str, Clause] = {}
    for path in scan(root / "clauses").values():
        for row in parse(path):
            clause = Clause(row["id"], row["must"], row["check"], row["issue"], row["source"])
            if clause.id in clauses:
                raise ValueError(f"{path}: {clause.id} stands twice")
            clauses[clause.id] = clause
    return clauses


def scan_tests(files: Iterable[Path], root: Path) -> Scan:
    """The marks of ``files``; places are given relative to ``root``."""
    marks: list[Mark] = []
    faults: list[str] = []
    for path in files:
        name = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=name)
        for fault_or_mark in _Reader(name, path.name).read(tree):
            (marks if isinstance(fault_or_mark, Mark) else faults).append(fault_or_mark)  # type: ignore[arg-type]
    return Scan(tuple(marks), tuple(faults))


def case_marks(root: Path) -> Iterator[Mark]:
    """What the cases below ``conformance`` name: a group's clauses and those of its tests."""
    for path in sorted((root / "conformance").rglob("cases/**/*.json")):
        place = path.relative_to(root).as_posix()
        for group in json.loads(path.read_text(encoding="utf-8")):
            named = [
                *group.get("clauses", ()),
                *(c for test in group["tests"] for c in test.get("clauses", ())),
            ]
            yield from (Mark(clause, "proved", place) for clause in dict.fromkeys(named))


def python_files(root: Path) -> list[Path]:
    """Every Python file below the folders that hold tests."""
    return sorted(path for folder in TEST_FOLDERS for path in (root / folder).rglob("*.py"))


class _Reader:
    """Walks one module and yields its marks, and a text for each mark that proves nothing."""

    def __init__(self, name: str, file: str) -> None:
        self._name = name
        self._is_test_file = file.startswith("test_")

    def read(self, tree: ast.Module) -> Iterator[Mark | str]:
        owners = dict(_owners(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (state := _state(node.func)):
                yield from self._ids(node, state, owners.get(node))

    def _ids(self, call: ast.Call, state: State, owner: ast.AST | None) -> Iterator[Mark | str]:
        place = f"{self._name}:{call.lineno}"
        if (reason := self._never_collected(owner)) is not None:
            yield f"{place}: {reason}"
        elif not call.args or call.keywords:
            yield f"{place}: a clause mark needs ids, given by place"
        else:
            for argument in call.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield Mark(argument.value, state, place)
                else:
                    yield f"{place}: a clause id must be a literal"

    def _never_collected(self, owner: ast.AST | None) -> str | None:
        if not self._is_test_file:
            return "the file is no test module (test_*.py)"
        if isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef):
            if not owner.name.startswith("test_"):
                return f"{owner.name} is no test"
        elif isinstance(owner, ast.ClassDef) and not owner.name.startswith("Test"):
            return f"{owner.name} is no test class"
        for decorator in getattr(owner, "decorator_list", ()):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(called, ast.Attribute) and called.attr in _NEVER_RUN:
                return f"the test is marked {called.attr}"
        return None


def _state(function: ast.expr) -> State | None:
    """The state that a call of ``pytest.mark.<name>`` gives, or None for any other call."""
    if not isinstance(function, ast.Attribute):
        return None
    holder = function.value
    holder_name = holder.attr if isinstance(holder, ast.Attribute) else getattr(holder, "id", "")
    return _MARKS.get(function.attr) if holder_name == "mark" else None


def _owners(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Each node of a decorator → the function or class that it decorates."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                for part in ast.walk(decorator):
                    yield part, node


def states(clauses: Mapping[str, Clause], marks: Iterable[Mark]) -> dict[str, State]:
    """Clause id → how far it is proved."""
    result: dict[str, State] = dict.fromkeys(clauses, "unproved")
    for mark in marks:
        if mark.clause in result and result[mark.clause] != "proved":
            result[mark.clause] = mark.state
    return result


def table(title: str, groups: Mapping[str, Sequence[State]]) -> str:
    """Counts per group as aligned text, with a line for all."""
    everything = [state for group in groups.values() for state in group]
    width = max(len(name) for name in (*groups, title, "all"))
    lines = [f"{title:{width}}" + "".join(f"{state:>10}" for state in STATES)]
    for name, group in (*sorted(groups.items()), ("all", everything)):
        counts = Counter(group)
        lines.append(f"{name:{width}}" + "".join(f"{counts[state]:>10}" for state in STATES))
    return "\n".join(lines)


def report(clauses: Sequence[Clause], reached: Mapping[str, State]) -> str:
    """The counts of ``clauses`` per heading and per owner."""
    tables = []
    for title, key in (("heading", "heading"), ("owner", "owner")):
        groups: dict[str, list[State]] = {}
        for clause in clauses:
            groups.setdefault(getattr(clause, key), []).append(reached[clause.id])
        tables.append(table(title, groups))
    return "\n\n".join(tables)


def listing(clauses: Sequence[Clause], reached: Mapping[str, State], marks: Sequence[Mark]) -> str:
    """The early clauses with the places that name them, then the unproved ones with their check."""
    lines: list[str] = []
    for clause in clauses:
        if reached[clause.id] == "early":
            places = ", ".join(mark.place for mark in marks if mark.clause == clause.id)
            lines.append(f"early     {clause.id}  {places}")
    for clause in clauses:
        if reached[clause.id] == "unproved":
            lines += [f"unproved  {clause.id}  {clause.must}", f"          check: {clause.check}"]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Print the report; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.clauses", description="Which clauses the tests prove."
    )
    parser.add_argument("--owner", metavar="KEY", help="only the clauses of this owner, open ones listed")
    parser.add_argument("--check", action="store_true", help="exit 1 when a clause of the owner is unproved")
    options = parser.parse_args(argv)
    clauses = read_clauses(root / "spec")
    found = scan_tests(python_files(root), root)
    found = Scan((*found.marks, *case_marks(root)), found.faults)
    unknown = [f"{mark.place}: no clause {mark.clause}" for mark in found.marks if mark.clause not in clauses]
    for fault in (*found.faults, *unknown):
        print(fault, file=sys.stderr)
    owners = {clause.owner for clause in clauses.values()}
    if options.owner is not None and options.owner not in owners:
        print(f"no owner {options.owner}; there are {', '.join(sorted(owners))}", file=sys.stderr)
        return 2
    chosen = [clause for clause in clauses.values() if options.owner in (None, clause.owner)]
    reached = states(clauses, found.marks)
    print(report(chosen, reached))
    if options.owner is not None and (details := listing(chosen, reached, found.marks)):
        print(f"\n{details}")
    if found.faults or unknown:
        return 2
    return int(options.check and any(reached[clause.id] == "unproved" for clause in chosen))


if __name__ == "__main__":
    sys.exit(main())
