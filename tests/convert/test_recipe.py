"""Recipes give the formats that the published artifacts and the option's help promise."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer import spec
from ninfer.artifact.contract import activation_policies, formats
from ninfer.convert.architecture import read_architecture
from ninfer.convert.layout import stored_parameters
from ninfer.convert.recipe import Place, load_recipe, place_of, recipe_names
from ninfer.errors import CheckpointError
from tests.convert import published

Q4, Q5, Q6, Q8 = "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"


def formats_of(config: dict[str, Any], recipe: str) -> dict[str, str]:
    """Parameter → format for a published model."""
    text = read_architecture(config).text
    chosen = load_recipe(recipe, text)
    return {row.name: chosen.format_of(row) for row in stored_parameters(text, True)}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("text/token_embedding", Q8),
        ("text/output_head", Q8),
        ("text/layers/3/attention/query", Q4),
        ("text/layers/3/attention/key", Q4),
        ("text/layers/3/attention/gate", Q5),
        ("text/layers/3/attention/value", Q5),
        ("text/layers/3/attention/output", Q5),
        ("text/layers/0/gdn/query", Q4),
        ("text/layers/0/gdn/key", Q4),
        ("text/layers/0/gdn/value", Q5),
        ("text/layers/0/gdn/z", Q5),
        ("text/layers/0/gdn/output", Q5),
        ("text/layers/0/gdn/a_projection", "bf16"),
        ("text/layers/0/gdn/b_projection", "bf16"),
        ("text/layers/0/gdn/convolution", "bf16"),
        ("text/layers/0/gdn/norm", "bf16"),
        ("text/layers/0/gdn/a_log", "fp32"),
        ("text/layers/0/gdn/dt_bias", "fp32"),
        ("text/layers/63/mlp/gate", Q4),
        ("text/layers/63/mlp/up", Q4),
        ("text/layers/63/mlp/down", Q5),
        ("text/layers/0/input_norm", "bf16"),
        ("mtp/input_projection", Q8),
        ("mtp/layers/0/attention/query", Q8),
        ("mtp/layers/0/mlp/down", Q8),
        ("mtp/hidden_norm", "bf16"),
    ],
)
def test_groupwise_formats_of_the_27b(name: str, form: str) -> None:
    assert formats_of(published.B27, "groupwise-int")[name] == form


def test_groupwise_formats_of_the_35b() -> None:
    found = formats_of(published.B35_A3B, "groupwise-int")
    for layer in range(40):
        prefix = f"text/layers/{layer}/moe/"
        assert found[f"{prefix}experts/17/gate"] == found[f"{prefix}experts/255/up"] == Q4
        assert found[f"{prefix}experts/0/down"] == (Q6 if layer in (34, 38, 39) else Q5)
        assert found[f"{prefix}shared/down"] == Q8
        assert found[f"{prefix}router"] == found[f"{prefix}shared_score"] == "bf16"
    assert found["text/output_head"] == Q6
    assert found["text/token_embedding"] == found["text/layers/0/gdn/z"] == Q8
    assert found["text/layers/39/attention/gate"] == found["mtp/layers/0/moe/experts/3/down"] == Q8
    assert found["mtp/layers/0/moe/router"] == "bf16"


@pytest.mark.parametrize(("layers", "late"), [(1, {0}), (4, {2, 3}), (6, {0, 4, 5}), (60, {54, 58, 59})])
def test_late_layers_keep_their_distance_from_the_end(layers: int, late: set[int]) -> None:
    text = published.B35_A3B["text_config"] | {"num_hidden_layers": layers, "num_experts": 8}
    found = formats_of({**published.B35_A3B, "text_config": text}, "groupwise-int")
    finer = {i for i in range(layers) if found[f"text/layers/{i}/moe/experts/0/down"] == Q6}
    assert finer == late


@pytest.mark.parametrize("config", [published.B27, published.B35_A3B], ids=["27b", "35b"])
def test_q8_and_q4_quantise_what_groupwise_does(config: dict[str, Any]) -> None:
    groupwise, q8, q4 = (formats_of(config, name) for name in ("groupwise-int", "q8", "q4"))
    for name, form in groupwise.items():
        if form in ("bf16", "fp32"):
            assert q8[name] == q4[name] == form
            continue
        assert q8[name] == Q8
        kept = name in ("text/token_embedding", "text/output_head") or name.startswith("mtp/")
        assert q4[name] == (Q8 if kept else Q4)


@pytest.mark.parametrize("config", [published.B27, published.B35_A3B], ids=["27b", "35b"])
def test_bf16_quantises_nothing(config: dict[str, Any]) -> None:
    found = formats_of(config, "bf16")
    assert {form for name, form in found.items() if not name.endswith(("a_log", "dt_bias"))} == {"bf16"}


def test_tables_name_known_formats_policies_and_parameters() -> None:
    tables = spec.document("convert")
    used = {
        tables["unquantised"],
        *(form for late in tables["late_layers"].values() for form in late["formats"].values()),
    }
    for row in tables["recipes"].values():
        used |= {row[key] for key in ("every", "vocabulary", "mtp") if key in row}
    for config in (published.B27, published.B35_A3B):
        text = read_architecture(config).text
        leaves = {place_of(row.name).leaf for row in stored_parameters(text, True)}
        table = tables["groupwise"][text.feed_forward]
        assert set(table) <= leaves
        assert {leaf for group in tables["parents"][text.feed_forward] for leaf in group} <= leaves
        used |= set(table.values())
    assert used <= set(formats())
    assert tables["activation_policy"] in activation_policies()
    assert set(tables["verify"]["bounds"]) == set(recipe_names())


def test_an_unknown_recipe_is_named_with_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match="'q3' is not one of bf16, q8, q4, groupwise-int"):
        load_recipe("q3", read_architecture(published.B27).text)


def test_places() -> None:
    assert place_of("text/final_norm") == Place("", None, "text/final_norm", 0)
    assert place_of("text/layers/12/gdn/z") == Place("text/layers/12/", 12, "gdn/z", 0)
    expert = place_of("mtp/layers/0/moe/experts/31/down")
    assert expert == Place("mtp/layers/0/", 0, "moe/experts/{e}/down", 31)
    assert expert.is_mtp
    assert place_of("mtp/input_projection").is_mtp
