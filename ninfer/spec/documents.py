"""Loads ``spec/`` documents: from the wheel's compiled JSON, or from the checkout's YAML and JSON files.

Owns the choice between the two, the cache, and the strict reading of YAML (no key twice, no key that JSON
could not carry, no number that YAML 1.1 would take for text); knows nothing of what a document says.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ninfer.errors import SpecError

_COMPILED = Path(__file__).with_name("compiled.json")
_CHECKOUT = Path(__file__).parents[2] / "spec"
_SUFFIXES = (".yaml", ".json")
_NUMBER_AS_TEXT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]+")

# What only tests and tools read stays out of a wheel: clauses, golden vectors and the schemas of documents.
DEVELOPMENT_FOLDERS = ("clauses/", "vectors/", "schemas/")


@functools.cache
def document(name: str) -> Any:
    """The parsed content of ``spec/<name>.yaml`` (or ``.json``); treat it as read-only.

    Errors: ``SpecError`` when there is no such document.
    """
    compiled = _compiled()
    if compiled is not None:
        if name not in compiled:
            raise SpecError(f"spec document {name!r} is not in {_COMPILED}")
        return compiled[name]
    for suffix in _SUFFIXES:
        path = _CHECKOUT / f"{name}{suffix}"
        if path.is_file():
            return parse(path)
    raise SpecError(f"spec document {name!r} not found under {_CHECKOUT}")


def document_names() -> tuple[str, ...]:
    """The names of all documents, sorted; a wheel has none of the ``DEVELOPMENT_FOLDERS``."""
    compiled = _compiled()
    if compiled is not None:
        return tuple(sorted(compiled))
    return tuple(sorted(scan(_CHECKOUT)))


def scan(root: Path) -> dict[str, Path]:
    """Document name → file for every YAML and JSON file below ``root``.

    Errors: ``SpecError`` when two files would have one name.
    """
    found: dict[str, Path] = {}
    for path in sorted(root.rglob("*")):
        if path.suffix not in _SUFFIXES:
            continue
        name = path.relative_to(root).with_suffix("").as_posix()
        if name in found:
            raise SpecError(f"spec document {name!r} is both {found[name].name} and {path.name}")
        found[name] = path
    return found


def parse(path: Path) -> Any:
    """One file's content. Errors: ``SpecError`` naming the file when it is malformed."""
    text = path.read_text(encoding="utf-8")
    try:
        if path.suffix == ".json":
            return json.loads(text, object_pairs_hook=_unique)
        return _parse_yaml(text)
    except ValueError as error:
        raise SpecError(f"{path}: {error}") from error


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if not isinstance(key, str):
            raise ValueError(f"the key {key!r} is not text; quote it")
        if key in members:
            raise ValueError(f"the key {key!r} stands twice")
        members[key] = value
    return members


def _parse_yaml(text: str) -> Any:
    import yaml  # a development dependency: wheels carry the compiled form

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """Safe YAML that drops and changes nothing."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[str, Any]:
            pairs = [
                (self.construct_object(key, deep), self.construct_object(item, deep))
                for key, item in node.value
            ]
            return _unique(pairs)

        def construct_yaml_str(self, node: Any) -> str:
            value: str = self.construct_scalar(node)
            if not node.style and _NUMBER_AS_TEXT.fullmatch(value):
                raise ValueError(f"{value} is text to YAML 1.1; write it with a point and a signed exponent")
            return value

    Loader.add_constructor("tag:yaml.org,2002:str", Loader.construct_yaml_str)
    try:
        return yaml.load(text, Loader=Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


@functools.cache
def _compiled() -> dict[str, Any] | None:
    if not _COMPILED.is_file():
        return None
    documents: dict[str, Any] = json.loads(_COMPILED.read_text(encoding="utf-8"))
    return documents
