"""How documents are found and read: strictly, and the same from a checkout and from compiled JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.errors import SpecError
from ninfer.spec import document, document_names
from ninfer.spec.documents import parse, scan


def test_every_document_survives_json() -> None:
    for name in document_names():
        content = document(name)
        assert json.loads(json.dumps(content, allow_nan=False)) == content, name


def test_names_are_paths_without_suffix(tmp_path: Path) -> None:
    (tmp_path / "http").mkdir()
    for file in ("options.yaml", "http/errors.json", "notes.md"):
        (tmp_path / file).write_text("{}")
    assert set(scan(tmp_path)) == {"options", "http/errors"}


def test_one_name_in_two_spellings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("{}")
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(SpecError, match=r"'a' is both a\.json and a\.yaml"):
        scan(tmp_path)


def test_a_missing_document_is_named() -> None:
    with pytest.raises(SpecError, match="'no/such'"):
        document("no/such")


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("a.yaml", "a: 1\nb: {c: 1, c: 2}", "'c' stands twice"),
        ("a.yaml", "a: {1: 2}", "1 is not text"),
        ("a.yaml", "a: {on: 2}", "True is not text"),
        ("a.yaml", "a: [1e-6]", "1e-6 is text to YAML 1.1"),
        ("a.yaml", "a: [1", "flow sequence"),
        ("a.yaml", "a: {<<: {b: 1}}", "merge"),
        ("a.json", '{"a": 1, "a": 2}', "'a' stands twice"),
        ("a.json", '{"a": ', "Expecting value"),
    ],
)
def test_a_malformed_document_is_refused_with_its_file(
    tmp_path: Path, file: str, text: str, fault: str
) -> None:
    path = tmp_path / file
    path.write_text(text)
    with pytest.raises(SpecError) as refused:
        parse(path)
    assert str(path) in str(refused.value)
    assert fault in str(refused.value)


@pytest.mark.parametrize(
    ("text", "value"), [("a: '1e-6'", "1e-6"), ("a: 1.0e-6", 1e-6), ("a: 2.5", 2.5), ("a: off", False)]
)
def test_numbers_and_words_keep_their_type(tmp_path: Path, text: str, value: object) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    assert parse(path) == {"a": value}


_SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=8)


@given(
    st.recursive(
        _SCALARS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=12,
    )
)
def test_json_and_yaml_spell_one_content(tmp_path_factory: pytest.TempPathFactory, content: object) -> None:
    import yaml

    folder = tmp_path_factory.mktemp("spec")
    (folder / "a.json").write_text(json.dumps(content))
    (folder / "b.yaml").write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    assert parse(folder / "a.json") == content
    assert parse(folder / "b.yaml") == content
