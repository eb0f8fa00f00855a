"""Loads ``spec/`` documents: from the wheel's compiled JSON, or from the checkout's YAML and JSON files.

Owns the choice between the two and the cache; knows nothing of what a document says.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from ninfer.errors import SpecError

_COMPILED = Path(__file__).with_name("compiled.json")
_CHECKOUT = Path(__file__).parents[2] / "spec"


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
    for suffix in (".yaml", ".json"):
        path = _CHECKOUT / f"{name}{suffix}"
        if path.is_file():
            return parse(path)
    raise SpecError(f"spec document {name!r} not found under {_CHECKOUT}")


def document_names() -> tuple[str, ...]:
    """The names of all documents, sorted."""
    compiled = _compiled()
    if compiled is not None:
        return tuple(sorted(compiled))
    return tuple(sorted(scan(_CHECKOUT)))


def scan(root: Path) -> dict[str, Path]:
    """Document name → file for every YAML and JSON file below ``root``."""
    files = (path for path in root.rglob("*") if path.suffix in (".yaml", ".json"))
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in files}


def parse(path: Path) -> Any:
    """One file's content. Errors: ``SpecError`` naming the file when it is malformed."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    import yaml  # a development dependency: wheels carry the compiled form

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: {error}") from error


@functools.cache
def _compiled() -> dict[str, Any] | None:
    if not _COMPILED.is_file():
        return None
    documents: dict[str, Any] = json.loads(_COMPILED.read_text(encoding="utf-8"))
    return documents
