"""Opening, resources, decoding through bindings, row slices, raw planes, and what use alone can refuse."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.artifact import Artifact, Binding
from ninfer.artifact.payload import Payload
from ninfer.errors import ArtifactError
from tests.artifact.building import (
    FLOATS,
    QUANTISED,
    every_format,
    frame,
    small_directory,
    small_payload,
    write,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same artifact as one file and as parts whose borders cut planes in the middle."""
    folder = tmp_path_factory.mktemp("every")
    plan, data = every_format()
    return {
        "one": write(folder / "one.ninfer", plan, data),
        "parts": write(folder / "parts.ninfer", plan, data, max_file_bytes=20_480),
    }


@pytest.fixture(params=["one", "parts"])
def artifact(files: dict[str, Path], request: pytest.FixtureRequest) -> Any:
    with Artifact.open(files[request.param]) as opened:
        yield opened


def small(tmp_path: Path, change: Any = None, payload: bytes | None = None) -> Path:
    """The hand-framed small artifact, its directory changed in place by ``change``."""
    value = small_directory()
    if change is not None:
        change(value)
    path = tmp_path / "small.ninfer"
    path.write_bytes(frame(value, small_payload() if payload is None else payload))
    return path


def test_a_file_framed_by_hand_reads_back(tmp_path: Path) -> None:
    with Artifact.open(str(small(tmp_path))) as artifact:
        assert artifact.artifact_id == bytes(range(16))
        assert artifact.resource("text", "tokenizer.json") == b"hello"
        assert artifact.parameter("whole").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert artifact.parameter("parts").tolist() == [[12, 13, 14, 15], [0, 1, 2, 3]]
        assert artifact.parameter("parts", shape=(2, 2, 2)).tolist()[1] == [[0, 1], [2, 3]]
        divisor = artifact.directory.uses[0].auxiliaries["activation_input_divisor"]
        assert artifact.auxiliary(divisor).tolist() == 2.5
        assert artifact.public_name == "small"


def test_public_name_falls_back_to_the_architecture(tmp_path: Path) -> None:
    with Artifact.open(small(tmp_path, lambda value: value.pop("metadata"))) as artifact:
        assert artifact.public_name == "Qwen3_5ForCausalLM"


def test_public_name_needs_one_of_the_two(tmp_path: Path) -> None:
    def strip(value: dict[str, Any]) -> None:
        del value["metadata"]
        value["components"]["text"]["config"] = {"architectures": []}

    with (
        Artifact.open(small(tmp_path, strip)) as artifact,
        pytest.raises(ArtifactError, match="architectures"),
    ):
        _ = artifact.public_name


@pytest.mark.parametrize("name", FLOATS)
def test_values_come_back_within_the_format(artifact: Artifact, name: str) -> None:
    expected = every_format()[1][name]
    decoded = artifact.parameter(f"p/{name}")
    steps = {"bf16": 2**-7, "fp32": 0, "q4_g64_fp16": 1 / 7, "q5_g64_fp16": 1 / 15, "q6_g64_fp16": 1 / 31}
    steps |= {"q8_g32_fp16": 1 / 127, "fp8_e4m3fn_row_bf16": 2**-3, "nvfp4": 3 / 8}
    assert decoded.dtype == np.float32
    assert np.abs(decoded - expected).max() <= 0.51 * steps[name] * np.abs(expected).max()
    assert decoded.flags.writeable
    artifact.validate(f"weight/{name}")


def test_integers_stay_integers(artifact: Artifact) -> None:
    found = artifact.parameter("p/int32")
    assert (found.dtype, found.tolist()) == (np.int32, [-2, -1, 0, 1, 2])
    assert artifact.parameter("p/int32", slice(0, 0)).dtype == np.int32


@settings(max_examples=25)
@given(name=st.sampled_from(FLOATS), first=st.integers(-260, 260), count=st.integers(0, 140))
def test_row_slices_equal_the_whole(files: dict[str, Path], name: str, first: int, count: int) -> None:
    rows = slice(first, first + count)
    for path in files.values():
        with Artifact.open(path) as artifact:
            assert np.array_equal(
                artifact.parameter(f"p/{name}", rows), artifact.parameter(f"p/{name}")[rows]
            )


def test_parts_take_ranges_of_several_formats(artifact: Artifact) -> None:
    whole = {name: artifact.parameter(f"p/{name}") for name in FLOATS}
    assert np.array_equal(artifact.parameter("p/middle"), whole["q4_g64_fp16"][3:10])
    stacked = np.concatenate([whole["nvfp4"][128:129], whole["q5_g64_fp16"][:2]])
    assert np.array_equal(artifact.parameter("p/stacked"), stacked)
    assert np.array_equal(artifact.parameter("p/stacked", slice(1, 2)), stacked[1:2])
    odd = np.concatenate([whole["q6_g64_fp16"].reshape(-1)[17:1000], whole["bf16"].reshape(-1)[5:6]])
    assert np.array_equal(artifact.parameter("p/odd"), odd)
    assert artifact.parameter_shape("p/odd") == (984,)
    assert artifact.parameter_formats("p/stacked") == ("nvfp4", "q5_g64_fp16")


@settings(max_examples=40)
@given(data=st.data(), name=st.sampled_from(FLOATS))
def test_any_element_range_equals_a_flat_slice(
    files: dict[str, Path], name: str, data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, 256 * 192 - 1))
    end = data.draw(st.integers(begin + 1, min(begin + 3000, 256 * 192)))
    with Artifact.open(files["parts"]) as artifact:
        found = artifact.auxiliary(Binding.ranges([(f"weight/{name}", begin, end)]))
        assert np.array_equal(found.reshape(-1), artifact.parameter(f"p/{name}").reshape(-1)[begin:end])


@pytest.mark.parametrize("name", QUANTISED)
def test_a_row_slice_reads_its_rows_only(
    files: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    original = Payload.read

    def spy(self: Payload, offset: int, length: int) -> Any:
        lengths.append(length)
        return original(self, offset, length)

    with Artifact.open(files["one"]) as artifact:
        monkeypatch.setattr(Payload, "read", spy)
        artifact.parameter(f"p/{name}", slice(130, 132))
        stored = artifact.directory.tensor(f"weight/{name}").bytes
    # nvfp4 scales come in tiles of 128 rows, so it decodes half of these 256 rows.
    assert sum(lengths) <= stored * (0.51 if name == "nvfp4" else 0.01)


@pytest.mark.parametrize("name", [*FLOATS, "int32"])
def test_raw_planes_are_the_objects_bytes(artifact: Artifact, name: str, files: dict[str, Path]) -> None:
    (piece,) = artifact.encoded(f"p/{name}")
    with Artifact.open(files["one"]) as one:
        tensor = one.directory.tensor(f"weight/{name}")
        raw = one._payload.read(tensor.offset, tensor.bytes).tobytes()
    assert (piece.begin, piece.end, piece.rows) == (0, tensor.elements, (0, tensor.shape[0]))
    assert all(plane.tobytes() in raw for plane in piece.planes.values())
    assert sum(plane.nbytes for plane in piece.planes.values()) > tensor.bytes - 512


def test_raw_planes_have_the_documented_shapes(artifact: Artifact) -> None:
    seen = {
        name: {
            plane: (array.dtype.str, array.shape)
            for plane, array in artifact.planes(f"weight/{name}").items()
        }
        for name in FLOATS
    }
    assert seen["bf16"] == {"words": ("<u2", (256, 192))}
    assert seen["q4_g64_fp16"] == {"base": ("|u1", (256, 128)), "scales": ("<f2", (256, 4))}
    assert seen["q5_g64_fp16"]["high"] == ("|u1", (256, 32))
    assert seen["q8_g32_fp16"] == {"base": ("|u1", (256, 256)), "scales": ("<f2", (256, 8))}
    assert seen["fp8_e4m3fn_row_bf16"] == {"codes": ("|u1", (256, 192)), "scales": ("<u2", (256,))}
    assert seen["nvfp4"] == {
        "codes": ("|u1", (256, 96)),
        "scales": ("|u1", (2, 3, 512)),
        "divisor": ("<f4", ()),
    }


def test_raw_planes_of_one_file_are_views_and_outlive_the_artifact(files: dict[str, Path]) -> None:
    with Artifact.open(files["one"]) as artifact:
        first = artifact.planes("weight/q4_g64_fp16")["base"]
        second = artifact.planes("weight/q4_g64_fp16")["base"]
        assert np.shares_memory(first, second)
        assert not first.flags.writeable
        rows = artifact.encoded("p/middle")[0].rows
    assert rows == (3, 10)
    assert int(first.astype(np.int64).sum()) > 0
    with pytest.raises(ArtifactError, match="closed"):
        artifact.parameter("p/bf16")


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (lambda artifact: artifact.parameter("nothing"), "bindings['nothing']"),
        (lambda artifact: artifact.parameter("\ud800"), r"bindings['\ud800']"),
        (lambda artifact: artifact.parameter_shape("nothing"), "bindings['nothing']"),
        (lambda artifact: artifact.encoded("nothing"), "bindings['nothing']"),
        (lambda artifact: artifact.planes("resource/t"), "object 'resource/t'"),
        (lambda artifact: artifact.validate("nothing"), "object 'nothing'"),
        (lambda artifact: artifact.resource("vision", "x"), "components.vision"),
        (lambda artifact: artifact.resource("text", "x"), "components.text.resources.x"),
        (lambda artifact: artifact.parameter("p/bf16", shape=(192, 256)), "parameter 'p/bf16'"),
        (lambda artifact: artifact.parameter("p/bf16", slice(0, 8, 2)), "parameter 'p/bf16'"),
    ],
)
def test_asking_for_what_is_not_there(artifact: Artifact, call: Any, where: str) -> None:
    with pytest.raises(ArtifactError) as error:
        call(artifact)
    assert error.value.where == where


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "t2_g128_fp16"}, "format 't2_g128_fp16' is not known"),
        ({"layout": "contiguous_le_v2"}, "layout 'contiguous_le_v2' is not known"),
        ({"format": "q4_g64_fp16"}, "does not hold format q4_g64_fp16"),
        ({"bytes": 15}, "bf16 [2, 4] needs 16 bytes, not 15"),
        ({"shape": [4, 4]}, "bf16 [4, 4] needs 32 bytes, not 16"),
        ({"shape": [1 << 40, 1 << 20]}, "needs 2305843009213693952 bytes, not 16"),
        ({"offset": 264}, "offset 264 is not a multiple of 256"),
    ],
)
def test_an_object_is_judged_when_it_is_used(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = small(tmp_path, lambda value: value["objects"][1].update(change))
    with Artifact.open(path) as artifact:
        assert artifact.resource("text", "tokenizer.json") == b"hello"
        for use in (artifact.parameter, artifact.encoded):
            with pytest.raises(ArtifactError) as error:
                use("whole")
            assert error.value.where == "object 'a'"
            assert message in str(error.value)


def test_an_unknown_encoding_fails_when_the_resource_is_read(tmp_path: Path) -> None:
    path = small(tmp_path, lambda value: value["objects"][0].update(encoding="zstd_v1"))
    with (
        Artifact.open(path) as artifact,
        pytest.raises(ArtifactError, match="object 'r': encoding 'zstd_v1'"),
    ):
        artifact.resource("text", "tokenizer.json")


def test_integer_and_float_parts_do_not_mix(tmp_path: Path) -> None:
    path = small(tmp_path, lambda value: value["objects"][2].update(format="int32", bytes=32))
    with Artifact.open(path) as artifact, pytest.raises(ArtifactError, match="mix int32"):
        artifact.auxiliary(Binding.ranges([("a", 0, 2), ("b", 0, 2)]))


def test_parts_that_repeat_beyond_all_memory_are_refused(tmp_path: Path) -> None:
    parts = [("a", 0, 8)]
    path = small(tmp_path, lambda value: value["objects"][1].update(shape=[8]))
    with Artifact.open(path) as artifact, pytest.MonkeyPatch.context() as patch:
        patch.setattr("ninfer.artifact.reader._MAX_ELEMENTS", 15)
        assert artifact.auxiliary(Binding.ranges(parts)).size == 8
        with pytest.raises(ArtifactError, match="does not fit into memory"):
            artifact.auxiliary(Binding.ranges(parts * 2))


def test_illegal_words_are_found_by_validation_only(tmp_path: Path) -> None:
    plan, data = every_format(128, 64)
    path = write(tmp_path / "v.ninfer", plan, data)
    with Artifact.open(path) as artifact:
        start = path.stat().st_size - artifact.directory.payload_bytes
        offset = start + artifact.directory.tensor("weight/q8_g32_fp16").offset
    raw = bytearray(path.read_bytes())
    raw[offset + 128 * 100 + 3] = 0x80
    path.write_bytes(raw)
    with Artifact.open(path) as artifact:
        artifact.parameter("p/q8_g32_fp16")
        with pytest.raises(ArtifactError, match="row 100 group 0: code is below -127"):
            artifact.validate("weight/q8_g32_fp16")


def test_paths_that_are_no_artifact(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "fifo")
    for path in [
        tmp_path / "none",
        tmp_path,
        tmp_path / "empty",
        tmp_path / "fifo",
        "a\0b",
        "\ud800",
        "x" * 5000,
    ]:
        with pytest.raises(ArtifactError):
            Artifact.open(path)


@pytest.mark.parametrize(("change", "where"), [(-1, 5119), (1, 5120), (-1024, 4096), (4096, 5120)])
def test_the_entry_must_end_with_its_payload(tmp_path: Path, change: int, where: int) -> None:
    path = small(tmp_path, payload=bytes(1024 + change))
    with pytest.raises(ArtifactError) as error:
        Artifact.open(path)
    assert error.value.where == f"byte {where}"
    assert "exactly 5120" in str(error.value)


def test_an_older_artifact_is_refused_by_its_version(tmp_path: Path) -> None:
    path = tmp_path / "old.ninfer"
    path.write_bytes(b"NINFER\0\2" + (2).to_bytes(8, "little") + b"{}")
    with pytest.raises(ArtifactError, match="version 2"):
        Artifact.open(path)
