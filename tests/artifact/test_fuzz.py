"""Damaged artifacts: whatever is wrong, the only exception that leaves the reader is ``ArtifactError``.

NumPy warnings are errors under pytest, so a warning from damaged numbers fails these tests too.
"""

from __future__ import annotations

import functools
import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.artifact import Artifact, contract
from ninfer.errors import ArtifactError
from tests.artifact.building import FLOATS, every_format, frame, small_directory, small_payload, write
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


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NUMBER = st.sampled_from([0, 1, 4, 8, 16, 255, 256, 257, 512, 1023, 1024, 2**32, 2**63, 2**64 - 1, 2**64])


def paths(node: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, the whole first."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [prefix, *(path for key, child in children for path in paths(child, (*prefix, key)))]


def placed(path: tuple[Any, ...], value: Any) -> Any:
    """The small directory with ``value`` at ``path``."""
    if not path:
        return value
    root: Any = small_directory()
    holder = functools.reduce(lambda node, key: node[key], path[:-1], root)
    holder[path[-1]] = value
    return root


@settings(max_examples=300)
@given(path=st.sampled_from(paths(small_directory())), value=JSON)
def test_any_value_anywhere_in_the_directory(
    path: tuple[Any, ...], value: Any, tmp_path_factory: Any
) -> None:
    file = tmp_path_factory.getbasetemp() / "value.ninfer"
    text = json.dumps(placed(path, value)).encode("utf-8", "surrogatepass")
    file.write_bytes(frame(text, small_payload()))
    use_everything(file)


@settings(max_examples=300)
@given(data=st.data())
def test_any_offsets_sizes_shapes_and_ranges(data: st.DataObject, tmp_path_factory: Any) -> None:
    directory = small_directory()
    for row in directory["objects"]:
        if data.draw(st.booleans()):
            row[data.draw(st.sampled_from(["offset", "bytes"]))] = data.draw(NUMBER)
        if "shape" in row and data.draw(st.booleans()):
            row["shape"] = data.draw(st.lists(NUMBER | st.integers(1, 9), max_size=4))
            row["format"] = data.draw(st.sampled_from([*FLOATS, "int32"]))
            row["layout"] = contract.formats()[row["format"]].layout
    directory["bindings"]["parts"]["parts"][0]["range"] = [data.draw(NUMBER), data.draw(NUMBER)]
    directory["files"][0]["payload_bytes"] = size = data.draw(
        st.sampled_from([1024, 1024, 1023, 4096, 2**64 - 1])
    )
    file = tmp_path_factory.getbasetemp() / "numbers.ninfer"
    file.write_bytes(frame(directory, small_payload()[:size].ljust(min(size, 4096), b"\xff")))
    use_everything(file)


@settings(max_examples=300)
@given(
    magic=st.sampled_from([b"NINFER\0\3", b"NINFER\0\2", b"NINPRT\0\3", b""]) | st.binary(max_size=8),
    json_bytes=NUMBER | st.integers(0, 6000),
    rest=st.binary(max_size=60),
    keep=st.integers(0, 6000),
)
def test_any_header_and_any_length(
    magic: bytes, json_bytes: int, rest: bytes, keep: int, tmp_path_factory: Any
) -> None:
    whole = frame(small_directory(), small_payload())
    head = magic + struct.pack("<Q", min(json_bytes, 2**64 - 1)) + rest
    file = tmp_path_factory.getbasetemp() / "header.ninfer"
    file.write_bytes((head + whole[len(head) :])[:keep])
    use_everything(file)


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
