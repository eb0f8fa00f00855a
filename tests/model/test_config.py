"""The artifact's architecture config: what is read, derived and refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.errors import ArtifactError
from ninfer.model.config import check_mtp_config, parse_text_config, rotary_axis
from tests.model.published import QWEN_2B, QWEN_27B, QWEN_35B


def test_published_dense_model() -> None:
    config = parse_text_config(QWEN_27B)
    assert config.feed_forward == "dense"
    assert (config.hidden, config.layers, config.mlp, config.moe) == (5120, 64, 17408, None)
    assert config.layer_types.count("full_attention") == 16
    assert config.attention is not None
    assert config.gdn is not None
    assert (config.attention.query_heads, config.attention.rotary_dim) == (24, 64)
    assert config.gdn.channels == 10240
    assert not config.tied


def test_published_mixture() -> None:
    config = parse_text_config(QWEN_35B)
    assert config.feed_forward == "moe"
    assert config.mlp is None
    assert config.moe is not None
    assert (config.moe.experts, config.moe.experts_per_token) == (256, 8)
    assert config.gdn is not None
    assert config.gdn.channels == 8192


def test_published_sections_split_the_pairs_11_11_10() -> None:
    axes = [rotary_axis(pair, (11, 11, 10)) for pair in range(32)]
    assert [axes.count(axis) for axis in range(3)] == [11, 11, 10]
    assert axes[:6] == [0, 1, 2, 0, 1, 2]
    assert axes[30:] == [0, 1]


def bent(path: str, value: Any = None) -> dict[str, Any]:
    """The 27B config with one member replaced (None: removed)."""
    config = copy.deepcopy(QWEN_27B)
    *parents, last = path.split(".")
    target: Any = config
    for name in parents:
        target = target[name]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return config


WRONG = [
    *((name, None) for name in QWEN_27B),
    *((f"rope_parameters.{name}", None) for name in QWEN_27B["rope_parameters"]),
    ("architectures", ["Qwen3_5ForCausalLM", "Other"]),
    ("architectures", ["Qwen4ForCausalLM"]),
    ("architectures", "Qwen3_5ForCausalLM"),
    ("model_type", "qwen3_5_moe_text"),
    ("hidden_size", 0),
    ("hidden_size", -1),
    ("hidden_size", 5120.0),
    ("hidden_size", True),
    ("hidden_size", "5120"),
    ("rms_norm_eps", 0),
    ("rms_norm_eps", 10**400),
    ("rms_norm_eps", float("inf")),
    ("rms_norm_eps", float("nan")),
    ("tie_word_embeddings", 1),
    ("layer_types", []),
    ("layer_types", ["full_attention"]),
    ("layer_types", ["sliding_attention"] * 64),
    ("num_hidden_layers", 63),
    ("num_attention_heads", 23),
    ("linear_num_value_heads", 17),
    ("rope_parameters.mrope_section", [11, 11, 11]),
    ("rope_parameters.mrope_section", [32, 0]),
    ("rope_parameters.mrope_section", [0, 16, 16]),
    ("rope_parameters.mrope_section", [11, 11, True]),
    ("rope_parameters.partial_rotary_factor", 1.5),
    ("rope_parameters.rope_theta", "1e7"),
    ("rope_parameters.rope_type", "default"),
    ("num_experts", 8),
    ("surprise", 1),
]


@pytest.mark.parametrize(("path", "value"), WRONG, ids=[f"{path}={value}"[:60] for path, value in WRONG])
def test_what_is_wrong_is_named(path: str, value: Any) -> None:
    with pytest.raises(ArtifactError) as failure:
        parse_text_config(bent(path, value))
    assert failure.value.where.startswith("components.text.config.")
    if value is None:
        assert failure.value.where == f"components.text.config.{path}"


def test_a_mixture_must_not_choose_more_experts_than_it_has() -> None:
    with pytest.raises(ArtifactError, match="num_experts_per_tok"):
        parse_text_config(QWEN_35B | {"num_experts_per_tok": 257})


def test_linear_members_only_with_a_linear_layer() -> None:
    attention_only = QWEN_27B | {"layer_types": ["full_attention"] * 64}
    with pytest.raises(ArtifactError, match="linear_"):
        parse_text_config(attention_only)
    kept = {name: value for name, value in attention_only.items() if not name.startswith("linear_")}
    assert parse_text_config(kept).gdn is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda child: st.lists(child, max_size=3) | st.dictionaries(st.text(max_size=8), child, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([*QWEN_35B, "other"]), JSON)
def test_any_other_value_is_read_or_refused_by_name(name: str, value: Any) -> None:
    assert refused_at(QWEN_35B | {name: value}).startswith("components.text.config.")


def refused_at(config: dict[str, Any]) -> str:
    """The member that the parser refuses; the config's own name when it refuses none."""
    try:
        parse_text_config(config)
    except ArtifactError as error:
        return error.where
    return "components.text.config."


@pytest.mark.parametrize(
    ("text", "architecture", "fits"),
    [
        (QWEN_2B, "Qwen3_5MTP", True),
        (QWEN_35B, "Qwen3_5MoeMTP", True),
        (QWEN_2B, "Qwen3_5MoeMTP", False),
        (QWEN_35B, "Qwen3_5MTP", False),
        (QWEN_35B, "Other", False),
    ],
)
def test_mtp_fits_its_text_model(text: dict[str, Any], architecture: str, fits: bool) -> None:
    config = parse_text_config(text)
    if fits:
        check_mtp_config({"architectures": [architecture]}, config)
    else:
        with pytest.raises(ArtifactError, match=r"components\.mtp\.config\.architectures"):
            check_mtp_config({"architectures": [architecture]}, config)


def test_mtp_takes_nothing_else() -> None:
    with pytest.raises(ArtifactError, match="hidden_size"):
        check_mtp_config({"architectures": ["Qwen3_5MTP"], "hidden_size": 1}, parse_text_config(QWEN_2B))
