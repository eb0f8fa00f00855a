"""Damaged artifacts: whatever is wrong, the only exception that leaves the reader is ``ArtifactError``.

NumPy warnings are errors under pytest, so a warning from damaged numbers fails these tests too.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ninfer.artifact import Artifact
from ninfer.errors import ArtifactError
from tests.artifact.building import every_format, frame, small_directory, small_payload, write
from tests.artifact.mutation import Files, mutate, store


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[Files]:
    """One file, and the same over parts that cut planes."""
    folder = tmp_path_factory.mktemp("originals")
    plan, data = every_format(128, 64)
    files = []
    for name, cap in [("one", None), ("parts", 24_576)]:
        (folder / name).mkdir()
        write(folder / name / "entry.ninfer", plan, data, max_file_bytes=cap)
        files.append({path.name: path.read_bytes() for path in (folder / name).iterdir()})
    return files


def use_everything(path: Path) -> Counter[str]:
    """Open the artifact and touch all there is; counts what worked and what was refused."""
    outcome = Counter[str]()

    def attempt(call: Any, *arguments: Any) -> Any:
        try:
            found = call(*arguments)
        except ArtifactError as error:
            refused = error
        else:
            outcome["read"] += 1
            return found
        assert refused.where
        assert len(str(refused)) < 1000
        outcome["refused"] += 1
        return None

    artifact = attempt(Artifact.open, path)
    if artifact is None:
        return Counter({"not opened": 1})
    with artifact:
        attempt(lambda: artifact.public_name)
        attempt(artifact.weight_summary)
        for component, row in artifact.directory.components.items():
            for role in row.resources:
                attempt(artifact.resource, component, role)
        for name in artifact.directory.bindings:
            attempt(artifact.parameter, name)
            attempt(artifact.parameter, name, slice(1, 3))
            attempt(artifact.parameter_shape, name)
            attempt(artifact.parameter_formats, name)
            attempt(artifact.encoded, name)
        for use in artifact.directory.uses:
            for binding in use.auxiliaries.values():
                attempt(artifact.auxiliary, binding)
        for object_id in artifact.directory.objects:
            attempt(artifact.validate, object_id)
    return outcome


def run(originals: list[Files], folder: Path, seeds: range) -> Counter[str]:
    total = Counter[str]()
    for seed in seeds:
        path = store(folder, mutate(originals[seed % len(originals)], seed))
        try:
            total += use_everything(path)
        except BaseException as error:
            raise AssertionError(f"mutation {seed} raised {type(error).__name__}: {error}") from error
    return total


@pytest.mark.parametrize("chunk", range(3))
def test_mutated_files_raise_nothing_but_artifact_errors(
    originals: list[Files], tmp_path: Path, chunk: int
) -> None:
    total = run(originals, tmp_path, range(500 * chunk, 500 * (chunk + 1)))
    # All three outcomes must be common, or the mutations would not reach the code behind the directory.
    assert total["not opened"] > 100
    assert total["refused"] > 100
    assert total["read"] > 1000


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_campaign_of_mutated_files(originals: list[Files], tmp_path: Path, campaign_seed: int) -> None:
    count = 12_000
    total = run(originals, tmp_path, range(campaign_seed, campaign_seed + count))
    print(f"{count} mutated files raised nothing but ArtifactError: {dict(total)}")


def test_undamaged_files_are_read_whole(originals: list[Files], tmp_path: Path) -> None:
    for files in originals:
        outcome = use_everything(store(tmp_path, files))
        assert outcome["not opened"] == 0
        assert outcome["refused"] == 1, "the one resource is not a tensor to validate"


def test_a_directory_as_deep_as_the_parser_allows_is_read(tmp_path: Path) -> None:
    value: Any = 1
    for _ in range(150):
        value = {"a": value}
    path = tmp_path / "deep.ninfer"
    path.write_bytes(frame(small_directory() | {"metadata": value}, small_payload()))
    with Artifact.open(path) as artifact:
        assert "a" in artifact.directory.metadata
