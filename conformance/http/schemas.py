"""Validates live answers against ``spec/http/openapi.yaml``."""

from __future__ import annotations

import functools

from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from conformance.http.contract import document

_ROOT = "urn:openapi"


def check_schema(name: str, value: object) -> None:
    """Fails with the first violation of ``components.schemas.<name>``."""
    _validator(f"#/components/schemas/{name}").validate(value)


def check_answer(method: str, path: str, status: int, value: object) -> None:
    """Fails unless ``value`` is what the operation documents for ``status`` (or by ``default``)."""
    responses = document("http/openapi")["paths"][path][method.lower()]["responses"]
    row = responses.get(str(status)) or responses["default"]
    if "$ref" in row:
        row = document("http/openapi")["components"]["responses"][row["$ref"].rsplit("/", 1)[1]]
    schema = row["content"]["application/json"]["schema"]
    if "$ref" in schema:
        check_schema(schema["$ref"].rsplit("/", 1)[1], value)
    else:
        Draft202012Validator(schema).validate(value)


@functools.cache
def _validator(pointer: str) -> Draft202012Validator:
    resource = Resource.from_contents(document("http/openapi"), default_specification=DRAFT202012)
    registry = Registry().with_resource(_ROOT, resource)
    return Draft202012Validator({"$ref": _ROOT + pointer}, registry=registry)
