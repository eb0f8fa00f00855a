"""Configs of published models, as an artifact carries them."""

from __future__ import annotations

from typing import Any


def dense(
    hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, value_heads: int, tied: bool
) -> dict[str, Any]:
    """A dense text config with the sizes all published models share."""
    return _shared(hidden, layers, heads, kv_heads, value_heads, tied) | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "intermediate_size": mlp,
    }


def _shared(
    hidden: int, layers: int, heads: int, kv_heads: int, value_heads: int, tied: bool
) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "vocab_size": 248320,
        "num_hidden_layers": layers,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": tied,
        "rms_norm_eps": 1e-6,
        "layer_types": [
            "full_attention" if index % 4 == 3 else "linear_attention" for index in range(layers)
        ],
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "rope_parameters": {
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
        },
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": value_heads,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }


QWEN_2B = dense(2048, 6144, 24, 8, 2, 16, tied=True)
QWEN_27B = dense(5120, 17408, 64, 24, 4, 48, tied=False)
QWEN_35B = _shared(2048, 40, 16, 2, 32, tied=False) | {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
