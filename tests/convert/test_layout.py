"""Parameter and object counts of the published models, from config and recipe alone.

Parameter counts are the published totals; object counts are those of the published groupwise artifacts less
vision, drafter and proposal head, which have no place here yet.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import pytest

from ninfer.convert.architecture import read_architecture
from ninfer.convert.layout import Parent, plan_parents, stored_parameters
from ninfer.convert.recipe import load_recipe, recipe_names
from ninfer.model.config import TextConfig
from ninfer.model.parameters import mtp_parameters, text_parameters
from tests.convert import published


def text_of(config: dict[str, Any]) -> TextConfig:
    """The parsed text config of a published model."""
    return read_architecture(config).text


def parents_of(config: dict[str, Any], recipe: str) -> tuple[Parent, ...]:
    """The stored tensors of a published model."""
    text = text_of(config)
    return plan_parents(text, load_recipe(recipe, text), with_mtp=True)


def elements(rows: Any) -> int:
    """Logical elements of parameters."""
    return sum(prod(row.shape) for row in rows)


def test_35b_a3b_has_the_published_parameter_counts() -> None:
    text = text_of(published.B35_A3B)
    by_part = Counter[str]()
    for row in text_parameters(text):
        part = row.name.split("/")[1]
        by_part[part] += prod(row.shape)
    assert by_part["token_embedding"] == 508_559_360
    assert by_part["layers"] == 33_643_489_920
    assert by_part["final_norm"] + by_part["output_head"] == 508_561_408
    assert elements(text_parameters(text)) == 34_660_610_688
    assert elements(mtp_parameters(text)) == 844_640_768
    vision = 446_571_248  # not converted here; the published total holds it
    assert elements(stored_parameters(text, True)) + vision == 35_951_822_704


def test_2b_has_the_published_parameter_counts_with_its_head_tied() -> None:
    text = text_of(published.B2)
    assert elements(stored_parameters(text, False)) == 1_881_825_088
    assert elements(stored_parameters(text, True)) == 1_942_653_248


@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize(
    "config", [published.B0_8, published.B27, published.B35_A3B], ids=["0.8b", "27b", "35b"]
)
def test_every_parameter_is_in_exactly_one_parent(config: dict[str, Any], recipe: str) -> None:
    parents = parents_of(config, recipe)
    members = [member.name for parent in parents for member in parent.members]
    assert sorted(members) == sorted(row.name for row in stored_parameters(text_of(config), True))
    for parent in parents:
        assert elements(parent.members) == parent.elements
        assert len({member.shape[-1] for member in parent.members}) == 1


def test_27b_groupwise_has_the_published_objects() -> None:
    # Published (3.8, groupwise): bf16 627, fp32 96, q4 183, q5 246, q6 1, q8 30. Less vision (bf16 222,
    # q4 54, q5 54, q6 1, q8 2), DFlash2 (bf16 45, q8 21) and the proposal head (q4 1).
    counts = Counter(parent.format for parent in parents_of(published.B27, "groupwise-int"))
    assert counts == {"bf16": 360, "fp32": 96, "q4_g64_fp16": 128, "q5_g64_fp16": 192, "q8_g32_fp16": 7}


def test_35b_groupwise_has_the_published_objects() -> None:
    # Published: bf16 487, fp32 60, q4 95, q5 91, q6 5, q8 195. Less vision as above, DFlash (bf16 26, q8 25)
    # and the proposal head (q4 1).
    counts = Counter(parent.format for parent in parents_of(published.B35_A3B, "groupwise-int"))
    assert counts == {
        "bf16": 239,
        "fp32": 60,
        "q4_g64_fp16": 40,
        "q5_g64_fp16": 37,
        "q6_g64_fp16": 4,
        "q8_g32_fp16": 168,
    }


def test_27b_has_the_published_number_of_bindings() -> None:
    # Published 3.6-27B: 1422, of which vision 441 and the proposal head 2.
    text = text_of(published.B27)
    assert len(text_parameters(text)) + len(mtp_parameters(text)) == 1422 - 441 - 2


def test_neighbours_of_one_format_share_a_parent_in_order() -> None:
    def members(recipe: str, prefix: str) -> list[tuple[str, list[str]]]:
        return [
            (parent.format, [member.name.removeprefix(prefix) for member in parent.members])
            for parent in parents_of(published.B27, recipe)
            if parent.members[0].name.startswith(prefix) and len(parent.members) > 1
        ]

    assert members("groupwise-int", "text/layers/3/") == [
        ("q4_g64_fp16", ["attention/query", "attention/key"]),
        ("q5_g64_fp16", ["attention/gate", "attention/value"]),
        ("q4_g64_fp16", ["mlp/gate", "mlp/up"]),
    ]
    assert members("groupwise-int", "text/layers/0/")[:2] == [
        ("q4_g64_fp16", ["gdn/query", "gdn/key"]),
        ("q5_g64_fp16", ["gdn/value", "gdn/z"]),
    ]
    assert members("q8", "mtp/layers/0/")[0] == (
        "q8_g32_fp16",
        ["attention/query", "attention/key", "attention/gate", "attention/value"],
    )


def test_a_moe_layer_keeps_its_routed_experts_in_two_parents() -> None:
    parents = [
        p for p in parents_of(published.B35_A3B, "q4") if p.members[0].name.startswith("text/layers/7/moe/ex")
    ]
    assert [parent.shape for parent in parents] == [(256 * 1024, 2048), (256 * 2048, 512)]
    names = [member.name.removeprefix("text/layers/7/moe/experts/") for member in parents[0].members]
    assert names[:3] == ["0/gate", "0/up", "1/gate"]
    assert names[-1] == "255/up"
