"""The published models' directories as sparse files of the published size: open, count, summarise.

Counts and sizes are those known of the releases (spec/vectors/artifact_releases.json). That the rebuilt
geometry's payload ends within two pages of the published 20,437,521,664 bytes checks every size formula at
once. Times are printed (``pytest -s``), not asserted: they depend on the machine.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ninfer import spec
from ninfer.artifact import Artifact, FileEntry, ResourceObject, framing, json_text, render
from ninfer.artifact.framing import EntryHeader
from ninfer.artifact.plan import Placement, place
from tests.artifact.published import dense_27b, moe_35b_a3b

RELEASES: list[dict[str, Any]] = spec.document("vectors/artifact_releases")
PLANS = {"qwen3.8-27b": dense_27b, "qwen3.6-35b-a3b": moe_35b_a3b}
PAGE = 4096


def sparse_file(path: Path, placed: Placement, size: int) -> None:
    """Header and directory before a hole, the file exactly ``size`` bytes long."""
    start = (size - placed.directory.payload_bytes) // PAGE * PAGE
    directory = replace(placed.directory, files=(FileEntry(None, size - start),))
    text = json_text.render(render.to_json(directory)).ljust(start - 32)
    with path.open("wb") as file:
        file.write(framing.pack_entry(EntryHeader(len(text), bytes(range(16)))) + text)
        file.truncate(size)


def distinct_parameters(artifact: Artifact, component: str) -> int:
    """Logical elements a component's parameters are bound to, shared ranges once."""
    directory = artifact.directory
    pieces = {
        (tensor.id, begin, end)
        for name, binding in directory.bindings.items()
        if name.startswith(f"{component}/")
        for tensor, begin, end in directory.pieces(binding)
    }
    return sum(end - begin for _, begin, end in pieces)


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: str(release["input"]))
def test_a_published_directory_opens_and_counts(release: dict[str, Any], tmp_path: Path) -> None:
    name, expected = release["input"], release["expected"]
    path = tmp_path / f"{name}.ninfer"
    placed = place(PLANS[name](), path.name, 1 << 60)
    rebuilt = placed.payload_start + placed.directory.payload_bytes
    if "file_bytes" in expected:
        assert 0 <= expected["file_bytes"] - rebuilt <= 2 * PAGE
    else:  # the older container had a far shorter directory in front of the same payload
        assert 0 < expected["v2_file_bytes"] - placed.directory.payload_bytes <= 64 * PAGE
    sparse_file(path, placed, expected.get("file_bytes", rebuilt))

    start = time.perf_counter()
    artifact = Artifact.open(path)
    opened = time.perf_counter()
    summary = artifact.weight_summary()
    done = time.perf_counter()
    with artifact:
        objects = artifact.directory.objects.values()
        formats = Counter(found.format for found in objects if not isinstance(found, ResourceObject))
        assert artifact.public_name == name
        assert len(artifact.directory.bindings) == expected["bindings"]
        assert len(objects) - formats.total() == expected["resources"]
        assert formats == expected["tensors"]
        assert {form: row.tensors for form, row in summary.by_format.items()} == expected["tensors"]
        for component, parameters in expected["parameters"].items():
            assert distinct_parameters(artifact, component) == parameters
        for parameter in ("text/layers/3/attention/key", "mtp/input_projection", "proposal/token_ids"):
            assert not artifact.parameter(parameter, slice(0, 2)).any()
    counts = f"{len(objects)} objects, {expected['bindings']:,} bindings"
    print(
        f"\n{name}: {path.stat().st_size / 1e6:,.0f} MB, {counts}:"
        f" open {opened - start:.3f} s, summary {done - opened:.3f} s ({summary.parameters:,} parameters,"
        f" {summary.payload_bytes:,} B, mostly {summary.dominant_format})"
    )
