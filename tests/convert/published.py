"""Configs of the published sizes, with the members that a conversion reads."""

from __future__ import annotations

from typing import Any

COMMON: dict[str, Any] = {
    "vocab_size": 248320,
    "head_dim": 256,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "attn_output_gate": True,
    "max_position_embeddings": 262144,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    },
}


def dense(
    hidden: int, mlp: int, layers: int, heads: tuple[int, int], value_heads: int, tied: bool
) -> dict[str, Any]:
    """A dense model's whole ``config.json``."""
    text = COMMON | {
        "model_type": "qwen3_5_text",
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "linear_num_value_heads": value_heads,
    }
    return {"model_type": "qwen3_5", "tie_word_embeddings": tied, "text_config": text}


B0_8 = dense(1024, 3584, 24, (8, 2), 16, tied=True)
B2 = dense(2048, 6144, 24, (8, 2), 16, tied=True)
B27 = dense(5120, 17408, 64, (24, 4), 48, tied=False)
B35_A3B = {
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "text_config": COMMON
    | {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 32,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
}
