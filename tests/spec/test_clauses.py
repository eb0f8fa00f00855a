"""The clauses are all there, each once, and every document that names one names a real one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ninfer.spec import document, document_names

CLAUSES = [clause for name in document_names() if name.startswith("clauses/") for clause in document(name)]


def test_no_clause_is_lost_and_none_stands_twice() -> None:
    ids = [clause["id"] for clause in CLAUSES]
    assert len(ids) == len(set(ids)) == 1221


def test_owners_keep_their_clauses() -> None:
    assert Counter(clause["issue"] for clause in CLAUSES) == {
        "spine": 80, "fast": 33, "gpu": 20, "chat": 141, "protocols": 435, "constraints": 144,
        "speculation": 86, "speculation2": 79, "prefix": 50, "prefix2": 52, "media": 57, "later": 44,
    }  # fmt: skip


def test_a_file_holds_the_clauses_of_one_topic() -> None:
    for name in document_names():
        if name.startswith("clauses/"):
            topic = name.removeprefix("clauses/").upper()
            numbers = [int(clause["id"].removeprefix(f"{topic}-")) for clause in document(name)]
            assert numbers == sorted(numbers), name


def _named(content: Any) -> Iterator[str]:
    if isinstance(content, dict):
        for key, value in content.items():
            if key == "clauses" and isinstance(value, list):
                yield from value
            elif key == "clause" and isinstance(value, str):
                yield value
            else:
                yield from _named(value)
    elif isinstance(content, list):
        for item in content:
            yield from _named(item)


def test_clauses_named_by_documents_exist() -> None:
    known = {clause["id"] for clause in CLAUSES}
    for name in document_names():
        if not name.startswith(("clauses/", "schemas/")):
            assert set(_named(document(name))) <= known, name
