"""Every document under ``spec/`` has a schema and satisfies it; the schemas themselves can fail."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from ninfer.spec import document, document_names

OPENAPI = "http/openapi"
CHECKED = [name for name in document_names() if not name.startswith("schemas/") and name != OPENAPI]
SCHEMAS = [name for name in document_names() if name.startswith("schemas/")]


def schema_of(name: str) -> str | None:
    """A document's own schema, or the one of its folder."""
    candidates = (f"schemas/{name}", f"schemas/{name.rpartition('/')[0]}")
    return next((candidate for candidate in candidates if candidate in SCHEMAS), None)


def faults(name: str, content: Any) -> list[str]:
    schema = schema_of(name)
    assert schema is not None, f"spec/{name} has no schema under spec/schemas"
    return [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message}"
        for error in Draft202012Validator(document(schema)).iter_errors(content)
    ]


@pytest.mark.parametrize("name", CHECKED)
def test_document_satisfies_its_schema(name: str) -> None:
    assert faults(name, document(name)) == []


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_is_a_schema_of_something(name: str) -> None:
    Draft202012Validator.check_schema(document(name))
    assert any(schema_of(checked) == name for checked in CHECKED)


def test_openapi_document_is_valid() -> None:
    OpenAPIV31SpecValidator(document(OPENAPI)).validate()


def _case(item: object) -> str | None:
    """Readable test ids; functions show nothing."""
    return "-" if callable(item) else None


def _option(name: str) -> Callable[[Any], Any]:
    return lambda content: next(row for row in content["options"] if row["name"] == name)


# (document, where in it, member, wrong value): each one mistake that someone could make while editing.
MISTAKES: list[tuple[str, Callable[[Any], Any], str, Any]] = [
    ("options", _option("--port"), "defualt", 1),
    ("options", _option("--port"), "type", "int"),
    ("options", _option("--port"), "range", {"min": 1}),
    ("options", _option("--port"), "choices", ["a", "b"]),
    ("options", _option("--port"), "help", "Where --host listens."),
    ("options", _option("--port"), "clauses", ["OPT-2"]),
    ("options", _option("--greedy"), "default", True),
    ("options", _option("--engine"), "choices", ["reference"]),
    ("options", _option("--stop"), "default", []),
    ("options", _option("--max-context"), "per_program", {"ninfer": {"defaults": 1}}),
    ("clauses/opt", lambda content: content[0], "issue", "spin"),
    ("clauses/opt", lambda content: content[0], "id", "OPT-1"),
    ("kv_formats", lambda content: content["encodings"]["int8_g64"], "scale_type", "bf16"),
    ("kv_formats", lambda content: content["formats"]["bf16"]["key"], "rotate", True),
    ("sampling", lambda content: content["ranges"]["top_k"], "maximum", "20"),
    ("models/presets", lambda content: content["presets"][0]["thinking"], "top_k", 21),
    ("models/qwen3_5", lambda content: content["parameters"]["text"][0], "dtype", "fp8"),
    ("artifact", lambda content: content["formats"]["nvfp4"], "group", 17),
    ("http/errors", lambda content: content["errors"]["internal_error"], "status", 400),
    ("http/errors", lambda content: content["errors"]["internal_error"], "statuss", 500),
    ("convert", lambda content: content["recipes"]["q8"], "every", "q7"),
]


@pytest.mark.parametrize(("name", "where", "member", "value"), MISTAKES, ids=_case)
def test_schema_catches_a_mistake(name: str, where: Callable[[Any], Any], member: str, value: Any) -> None:
    content = copy.deepcopy(document(name))
    where(content)[member] = value
    assert faults(name, content) != []


@pytest.mark.parametrize(
    ("name", "where", "member"),
    [
        ("options", _option("--port"), "help"),
        ("options", _option("--port"), "default"),
        ("options", _option("--port"), "range"),
        ("options", _option("--port"), "metavar"),
        ("clauses/opt", lambda content: content[0], "check"),
        ("http/errors", lambda content: content["errors"]["internal_error"], "meaning"),
        ("kv_formats", lambda content: content["encodings"]["int8_g64"], "scale_bytes"),
    ],
    ids=_case,
)
def test_schema_misses_a_member(name: str, where: Callable[[Any], Any], member: str) -> None:
    content = copy.deepcopy(document(name))
    del where(content)[member]
    assert faults(name, content) != []
