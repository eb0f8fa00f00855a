"""``--inspect``: what an artifact holds, as text.

Owns the wording only; the numbers come from the artifact's directory, and no payload is read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ninfer.artifact import Artifact, Directory, ResourceObject, WeightSummary


def describe(path: Path) -> str:
    """The report on one ``.ninfer`` file. Errors: ``ArtifactError`` when it is refused."""
    with Artifact.open(path) as artifact:
        return "\n".join(_report(artifact)) + "\n"


def _report(artifact: Artifact) -> Iterator[str]:
    directory = artifact.directory
    yield f"artifact      {artifact.path}"
    yield f"public name   {artifact.public_name}"
    yield f"artifact id   {artifact.artifact_id.hex()}"
    yield from _mapping("metadata", directory.metadata)
    yield from _mapping("provenance", directory.provenance)
    yield ""
    yield from _components(directory)
    yield ""
    yield from _formats(artifact.weight_summary())
    yield ""
    yield from _objects(directory)


def _mapping(title: str, members: Mapping[str, Any]) -> Iterator[str]:
    yield f"{title}" if members else f"{title:14}none"
    for key, value in members.items():
        text = (
            value
            if isinstance(value, str)
            else json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
        )
        yield f"  {key}: {text}"


def _components(directory: Directory) -> Iterator[str]:
    prefixes = Counter(name.partition("/")[0] for name in directory.bindings)
    for name, component in directory.components.items():
        target = f" for {component.target}" if component.target else ""
        yield f"component {name}{target}: {prefixes[name]} parameters"
        for key, value in component.config.items():
            yield f"  {key}: {_layer_types(value) if key == 'layer_types' else json.dumps(value)}"
        for role, object_id in component.resources.items():
            yield f"  resource {role}: {directory.objects[object_id].bytes:,} bytes"


def _layer_types(kinds: Any) -> str:
    counts = Counter(kinds)
    places = [index for index, kind in enumerate(kinds) if kind == "full_attention"]
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) + f"; full attention at {places}"


def _formats(summary: WeightSummary) -> Iterator[str]:
    rows = [
        _row(name, row.tensors, row.parameters, row.payload_bytes) for name, row in summary.by_format.items()
    ]
    total = _row("total", summary.tensors, summary.parameters, summary.payload_bytes)
    yield from _table(("format", "tensors", "parameters", "bytes", "bits each"), [*rows, total])


def _row(name: str, tensors: int, parameters: int, size: int) -> tuple[str, ...]:
    return name, f"{tensors:,}", f"{parameters:,}", f"{size:,}", f"{8 * size / max(parameters, 1):.2f}"


def _objects(directory: Directory) -> Iterator[str]:
    resources = [item for item in directory.objects.values() if isinstance(item, ResourceObject)]
    policies = Counter(use.activation_policy or "no policy" for use in directory.uses)
    uses = ", ".join(f"{count} {policy}" for policy, count in sorted(policies.items()))
    yield f"objects       {len(directory.objects):,}, {len(resources)} of them resources"
    yield f"bindings      {len(directory.bindings):,}"
    yield f"uses          {len(directory.uses):,} ({uses})" if uses else "uses          0"
    yield f"payload       {directory.payload_bytes:,} bytes in {len(directory.files)} file(s)"
    for file in directory.files:
        yield f"  {file.path or '(entry)'}: {file.payload_bytes:,} bytes"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        first, *rest = (
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([first, *rest]).rstrip()
