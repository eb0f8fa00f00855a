"""``tools.clauses`` reads marks from test sources and counts what they prove."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.clauses import ROOT, Mark, Scan, case_marks, main, python_files, read_clauses, scan_tests, states

CLAUSES = """
- {id: AAA-001, must: "first", check: "one", issue: spine, source: "Heading one"}
- {id: AAA-002, must: "second", check: "two", issue: spine, source: "Heading one"}
- {id: AAA-003, must: "third", check: "three", issue: chat, source: "Heading two"}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "spec/clauses").mkdir(parents=True)
    (tmp_path / "spec/clauses/aaa.yaml").write_text(CLAUSES)
    (tmp_path / "tests").mkdir()
    return tmp_path


def scanned(project: Path, text: str, name: str = "test_it.py") -> Scan:
    path = project / "tests" / name
    path.write_text(text)
    return scan_tests([path], project)


@pytest.mark.parametrize(
    "text",
    [
        '@pytest.mark.clause("AAA-001", "AAA-002")\ndef test_a(): ...',
        '@mark.clause("AAA-001")\n@mark.clause("AAA-002")\nasync def test_a(): ...',
        '@pytest.mark.clause("AAA-001", "AAA-002")\nclass TestA:\n    def test_a(self): ...',
        'class TestA:\n    @pytest.mark.clause("AAA-001", "AAA-002")\n    def test_a(self): ...',
        'pytestmark = pytest.mark.clause("AAA-001", "AAA-002")',
        'pytestmark = [pytest.mark.campaign, pytest.mark.clause("AAA-001", "AAA-002")]',
        '@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.clause("AAA-001")),'
        ' pytest.param(2, marks=[pytest.mark.clause("AAA-002")])])\ndef test_a(x): ...',
    ],
)
def test_marks_are_found_wherever_pytest_takes_them(project: Path, text: str) -> None:
    found = scanned(project, text)
    assert found.faults == ()
    assert {(mark.clause, mark.state) for mark in found.marks} == {
        ("AAA-001", "proved"),
        ("AAA-002", "proved"),
    }


def test_cases_that_are_data_name_their_clauses(project: Path) -> None:
    path = project / "conformance/http/cases/chat/it.json"
    path.parent.mkdir(parents=True)
    tests = [{"description": "x", "clauses": ["AAA-002"]}, {"description": "y"}]
    path.write_text(json.dumps([{"description": "g", "clauses": ["AAA-001"], "tests": tests}]))
    place = "conformance/http/cases/chat/it.json"
    assert list(case_marks(project)) == [Mark("AAA-001", "proved", place), Mark("AAA-002", "proved", place)]
    assert main(["--owner", "spine", "--check"], project) == 0


def test_a_mark_says_where_it_stands(project: Path) -> None:
    found = scanned(project, '\n\n@pytest.mark.clause_early("AAA-003")\ndef test_a(): ...')
    assert found.marks == (Mark("AAA-003", "early", "tests/test_it.py:3"),)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('@pytest.mark.clause("AAA-001")\ndef helper(): ...', "helper is no test"),
        ('@pytest.mark.clause("AAA-001")\nclass Helper: ...', "Helper is no test class"),
        ("@pytest.mark.clause(IDS)\ndef test_a(): ...", "must be a literal"),
        ("@pytest.mark.clause(*IDS)\ndef test_a(): ...", "must be a literal"),
        ("@pytest.mark.clause()\ndef test_a(): ...", "needs ids"),
        ('@pytest.mark.clause(ids="AAA-001")\ndef test_a(): ...', "needs ids"),
        (
            '@pytest.mark.skip(reason="x")\n@pytest.mark.clause("AAA-001")\ndef test_a(): ...',
            "is marked skip",
        ),
        ('@pytest.mark.xfail\n@pytest.mark.clause("AAA-001")\ndef test_a(): ...', "is marked xfail"),
    ],
)
def test_marks_that_prove_nothing_are_faults(project: Path, text: str, fault: str) -> None:
    found = scanned(project, text)
    assert found.marks == ()
    assert len(found.faults) == 1
    assert fault in found.faults[0]


def test_a_mark_outside_a_test_module_is_a_fault(project: Path) -> None:
    found = scanned(project, 'pytestmark = pytest.mark.clause("AAA-001")', name="helpers.py")
    assert found.marks == ()
    assert "no test module" in found.faults[0]


def test_other_calls_are_no_marks(project: Path) -> None:
    text = 'clause("AAA-001")\nself.clause("AAA-001")\npytest.mark.other("AAA-001")\nmark("AAA-001")'
    assert scanned(project, text) == Scan((), ())


def test_a_proof_outweighs_an_early_one() -> None:
    clauses = dict.fromkeys(["AAA-001", "AAA-002", "AAA-003"])
    early, proved = Mark("AAA-001", "early", "x"), Mark("AAA-001", "proved", "y")
    second = Mark("AAA-002", "early", "z")
    expected = {"AAA-001": "proved", "AAA-002": "early", "AAA-003": "unproved"}
    assert states(clauses, [early, proved, second]) == expected  # type: ignore[arg-type]
    assert states(clauses, [second, proved, early]) == expected  # type: ignore[arg-type]


def test_report_counts_and_lists(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "tests/test_it.py").write_text('@pytest.mark.clause_early("AAA-001")\ndef test_a(): ...')
    assert main(["--owner", "spine"], project) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line.startswith(("Heading", "spine"))] == [
        ["Heading", "one", "0", "1", "1"],
        ["spine", "0", "1", "1"],
    ]
    assert "early     AAA-001  tests/test_it.py:1" in lines
    assert "unproved  AAA-002  second" in lines
    assert not any("AAA-003" in line for line in lines)
    assert main([], project) == 0
    counts = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert counts.count(["all", "0", "1", "2"]) == 2


def test_check_fails_until_every_clause_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = project / "tests/test_it.py"
    path.write_text('@pytest.mark.clause("AAA-001")\ndef test_a(): ...')
    assert main(["--owner", "spine", "--check"], project) == 1
    path.write_text('@pytest.mark.clause("AAA-001")\n@pytest.mark.clause_early("AAA-002")\ndef test_a(): ...')
    assert main(["--owner", "spine", "--check"], project) == 0
    assert main(["--check"], project) == 1
    capsys.readouterr()


def test_unknown_ids_and_owners_are_errors(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "tests/test_it.py").write_text('@pytest.mark.clause("AAA-009")\ndef test_a(): ...')
    assert main([], project) == 2
    assert "tests/test_it.py:1: no clause AAA-009" in capsys.readouterr().err
    assert main(["--owner", "nobody"], project) == 2
    assert "no owner nobody; there are chat, spine" in capsys.readouterr().err


def test_a_clause_that_stands_twice_is_refused(project: Path) -> None:
    (project / "spec/clauses/bbb.yaml").write_text(CLAUSES)
    with pytest.raises(ValueError, match="AAA-001 stands twice"):
        read_clauses(project / "spec")


def test_this_repository_names_only_clauses_that_exist() -> None:
    found = scan_tests(python_files(ROOT), ROOT)
    known = read_clauses(ROOT / "spec")
    assert found.faults == ()
    assert [mark for mark in found.marks if mark.clause not in known] == []
    assert any(mark.clause == "OPT-093" for mark in found.marks)
