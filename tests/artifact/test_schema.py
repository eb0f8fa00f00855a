"""The directory: what a good one becomes, and every structural rejection with the member it names."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer import spec
from ninfer.artifact import Binding, Part, Proposal, ResourceObject, TensorObject, render, schema
from ninfer.errors import ArtifactError
from tests.artifact.building import small_directory

REJECTIONS: list[dict[str, Any]] = spec.document("vectors/artifact_rejections")


def changed(path: list[str | int], change: dict[str, Any]) -> Any:
    """The small directory with one member set or removed; an empty path replaces the whole."""
    if not path:
        return change["value"]
    root = small_directory()
    holder: Any = root
    for step in path[:-1]:
        holder = holder[step]
    last = path[-1]
    if "delete" in change:
        del holder[last]
    elif isinstance(holder, list) and last == len(holder):
        holder.append(change["value"])
    else:
        holder[last] = change["value"]
    return root


def test_a_good_directory_keeps_everything_it_says() -> None:
    found = schema.build(small_directory(), "entry.ninfer")
    assert found.objects["r"] == ResourceObject("r", "raw_bytes_v1", 0, 5)
    assert found.objects["a"] == TensorObject("a", (2, 4), "bf16", "contiguous_le_v1", 256, 16)
    assert list(found.objects) == ["r", "a", "b", "d"]
    assert found.bindings["parts"] == Binding(None, (Part("b", 4, 8), Part("a", 0, 4)))
    assert found.components["text"].proposal == Proposal("indexed", 4)
    assert found.components["text"].resources == {"tokenizer.json": "r"}
    assert found.components["mtp"].target == "text"
    assert found.uses[0].auxiliaries == {"activation_input_divisor": Binding("d")}
    assert (found.uses[1].activation_policy, found.uses[1].auxiliaries) == (None, {})
    assert found.payload_bytes == 1024
    assert (found.metadata, found.provenance) == ({"name": "small"}, {})


@pytest.mark.parametrize("case", REJECTIONS, ids=lambda case: str(case["input"])[:80])
def test_every_structural_error_names_its_member(case: dict[str, Any]) -> None:
    change = case["input"]
    with pytest.raises(ArtifactError) as error:
        schema.build(changed(change["path"], change), "entry.ninfer")
    assert error.value.where == case["expected"]["where"]
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("member", ["components.text.config", "metadata", "provenance"])
def test_infinite_numbers_are_refused_wherever_values_are_open(member: str) -> None:
    value = small_directory() | {"provenance": {}}
    holder: Any = value
    for step in member.split("."):
        holder = holder[step]
    holder["deep"] = [1.0, {"x": float("inf")}]
    with pytest.raises(ArtifactError) as error:
        schema.build(value, "entry.ninfer")
    assert error.value.where == f"{member}.deep[1].x"


def test_what_only_use_can_judge_is_accepted() -> None:
    value = small_directory()
    value["objects"][1] |= {"format": "t2_g128_fp16", "layout": "new_v9", "offset": 257}
    value["objects"][0]["encoding"] = "zstd_v1"
    value["components"]["audio"] = {"config": {}, "target": "mtp"}
    assert schema.build(value, "entry.ninfer").objects["a"].format == "t2_g128_fp16"


def test_long_names_are_shortened_in_messages() -> None:
    value = small_directory()
    value["bindings"]["n" * 10_000] = {"object": "o" * 10_000}
    with pytest.raises(ArtifactError) as error:
        schema.build(value, "entry.ninfer")
    assert len(str(error.value)) < 400


@given(st.permutations(sorted(small_directory())))
def test_member_order_does_not_matter(order: list[str]) -> None:
    value = small_directory()
    assert schema.build({name: value[name] for name in order}, "e") == schema.build(value, "e")


def test_rendering_is_the_inverse() -> None:
    value = small_directory()
    found = schema.build(copy.deepcopy(value), "entry.ninfer")
    assert render.to_json(found) == value
    assert schema.build(render.to_json(found), "entry.ninfer") == found
