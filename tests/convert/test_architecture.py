"""``config.json`` in every shape it comes in; nothing is defaulted, nothing unsupported passes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from ninfer.convert.architecture import read_architecture
from ninfer.errors import CheckpointError
from tests.convert import published


def nested() -> dict[str, Any]:
    """A fresh nested config."""
    return copy.deepcopy(published.B0_8)


def flat() -> dict[str, Any]:
    """The same as a text-only export writes it."""
    config = nested()
    return {**config["text_config"], "tie_word_embeddings": config["tie_word_embeddings"]}


def test_the_artifact_config_is_closed_and_float32_rounded() -> None:
    found = read_architecture(nested())
    assert found.text_config == {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_size": 1024,
        "vocab_size": 248320,
        "num_hidden_layers": 24,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": True,
        "rms_norm_eps": 9.999999974752427e-07,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "rope_parameters": {
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
        },
        "intermediate_size": 3584,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 16,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
    assert found.mtp_config == {"architectures": ["Qwen3_5MTP"]}
    assert found.declares_mtp


def test_flat_and_nested_configs_say_the_same() -> None:
    assert read_architecture(flat()) == read_architecture(nested())


def test_the_outer_tie_wins_over_the_text_configs_class_default() -> None:
    config = nested()
    config["text_config"]["tie_word_embeddings"] = False
    assert read_architecture(config).text.tied


def test_a_tie_that_only_the_text_config_states_counts() -> None:
    config = nested()
    del config["tie_word_embeddings"]
    config["text_config"]["tie_word_embeddings"] = True
    assert read_architecture(config).text.tied


@pytest.mark.parametrize("scaling", ["rope_parameters", "rope_scaling"])
def test_older_configs_keep_rotary_members_flat(scaling: str) -> None:
    config = flat()
    rope = config.pop("rope_parameters")
    config |= {name: rope.pop(name) for name in ("rope_theta", "partial_rotary_factor")}
    config[scaling] = rope
    assert read_architecture(config) == read_architecture(flat())


def test_explicit_layer_types_win_over_the_interval() -> None:
    config = flat()
    config["layer_types"] = ["full_attention", "linear_attention", "linear_attention"]
    config["num_hidden_layers"] = 3
    assert read_architecture(config).text.layer_types == tuple(config["layer_types"])


def test_a_model_without_linear_layers_has_no_linear_members() -> None:
    config = flat()
    config["layer_types"] = ["full_attention"] * 24
    written = read_architecture(config).text_config
    assert not [name for name in written if name.startswith("linear_")]


def test_an_uneven_epsilon_is_rounded_to_float32() -> None:
    config = flat()
    config["rms_norm_eps"] = 1.23456789012345e-5
    assert read_architecture(config).text.rms_eps == float(np.float32(1.23456789012345e-5))


@pytest.mark.parametrize(
    "name",
    [
        "model_type",
        "hidden_size",
        "vocab_size",
        "num_hidden_layers",
        "max_position_embeddings",
        "tie_word_embeddings",
        "rms_norm_eps",
        "full_attention_interval",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "linear_num_key_heads",
        "linear_key_head_dim",
        "linear_num_value_heads",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    ],
)
def test_a_missing_member_is_named_never_defaulted(name: str) -> None:
    config = flat()
    del config[name]
    with pytest.raises(CheckpointError, match=rf"^config.json: {name} is missing"):
        read_architecture(config)


@pytest.mark.parametrize("name", ["rope_theta", "partial_rotary_factor", "mrope_section"])
def test_a_missing_rotary_member_is_named_never_defaulted(name: str) -> None:
    config = flat()
    del config["rope_parameters"][name]
    with pytest.raises(CheckpointError, match=rf"rope_parameters.{name} is missing"):
        read_architecture(config)


def test_a_missing_nested_member_is_named_with_its_path() -> None:
    config = nested()
    del config["text_config"]["head_dim"]
    with pytest.raises(CheckpointError, match=r"config.json: text_config.head_dim is missing"):
        read_architecture(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "qwen3_next"}, "'qwen3_next' is not qwen3_5_text or qwen3_5_moe_text"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"attn_output_gate": False}, "attn_output_gate is False"),
        ({"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings"),
        ({"mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers is 2"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is set"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer"),
        ({"full_attention_interval": True}, "full_attention_interval must be a positive integer"),
        ({"layer_types": ["sliding_attention"] * 24}, r"layer_types\[0\]"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"num_key_value_heads": 3}, "num_attention_heads.*multiple"),
        ({"hidden_size": "1024"}, "hidden_size"),
        ({"rope_theta": 10000.0}, "rope_theta differs from rope_parameters.rope_theta"),
        ({"rope_parameters": [1]}, "rope_parameters must be an object"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ],
)
def test_what_the_forward_pass_does_not_implement_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_architecture(flat() | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_type": "yarn", "factor": 4.0}, "rope_parameters.rope_type is 'yarn'; only 'default'"),
        ({"mrope_interleaved": False}, "mrope_interleaved"),
        ({"mrope_section": [11, 11, 11]}, "mrope_section"),
        ({"partial_rotary_factor": 2}, "partial_rotary_factor"),
    ],
)
def test_other_rotary_embeddings_are_refused(change: dict[str, Any], message: str) -> None:
    config = flat()
    config["rope_parameters"] |= change
    with pytest.raises(CheckpointError, match=message):
        read_architecture(config)
