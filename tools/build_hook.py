"""Build hook of the wheel: compiles ``spec/`` into one JSON, ``ninfer/spec/compiled.json`` inside the wheel.

Hatchling loads it by its path (``pyproject.toml``). The file is made in a temporary folder, never in the
source tree. An editable install reads the checkout's files and needs none. Left out, because only tests and
tools read them: clauses, golden vectors and the schemas of the documents themselves.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TARGET = "ninfer/spec/compiled.json"


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the compiled documents to every wheel but an editable one."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile and name the file for inclusion. Errors: ``SpecError`` naming a malformed document."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="ninfer-spec-")
        compiled = Path(self._folder.name) / "compiled.json"
        compiled.write_text(compile_documents(Path(self.root)), encoding="utf-8")
        build_data["force_include"][str(compiled)] = TARGET

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if self._folder is not None:
            self._folder.cleanup()


def compile_documents(root: Path) -> str:
    """All documents below ``root/spec`` that a wheel carries, as one JSON object by name.

    Errors: ``SpecError`` when there are none or one is malformed, ``ValueError`` when JSON would change one.
    """
    sys.path.insert(0, str(root))  # the tree being built, not an installed ninfer
    try:
        from ninfer.errors import SpecError
        from ninfer.spec.documents import DEVELOPMENT_FOLDERS, parse, scan
    finally:
        sys.path.remove(str(root))
    files = scan(root / "spec")
    if "options" not in files:
        raise SpecError(f"{root / 'spec'} has no options.yaml: a wheel without spec/ would not start")
    documents = {
        name: parse(path) for name, path in files.items() if not name.startswith(DEVELOPMENT_FOLDERS)
    }
    text = json.dumps(documents, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for name, content in json.loads(text).items():
        if content != documents[name]:
            raise ValueError(f"spec document {name!r} changes on its way through JSON")
    return text
