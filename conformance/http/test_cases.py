"""Every case under ``cases/``: on all servers that can be asked it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from conformance.http.cases import SCHEMA, Case, case_files, read_cases
from conformance.http.checks import ScriptedWorlds, World, check_case

CASES = read_cases()


@pytest.mark.parametrize("path", case_files(), ids=lambda path: path.name)
def test_case_files_follow_their_schema(path: Path) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    Draft202012Validator(schema).validate(json.loads(path.read_text(encoding="utf-8")))


def test_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", [case for case in CASES if case.anywhere], ids=lambda case: case.name)
def test_anywhere(live: World, case: Case) -> None:
    check_case(live, case)


@pytest.mark.parametrize("case", [case for case in CASES if not case.anywhere], ids=lambda case: case.name)
def test_scripted(scripted: ScriptedWorlds, case: Case) -> None:
    check_case(scripted(case.server or ()), case)
