"""What every logical parameter must hold, computed from a nano checkpoint in torch, independently of the
converter.
"""

from __future__ import annotations

import numpy as np
import torch

from tests.convert.checkpoints import GEOMETRY, Nano

HEADS, HEAD = GEOMETRY["num_attention_heads"], GEOMETRY["head_dim"]
KEY_ROWS = GEOMETRY["linear_num_key_heads"] * GEOMETRY["linear_key_head_dim"]


def expected_parameters(checkpoint: Nano) -> dict[str, np.ndarray]:
    """Logical name → float32 values, before any rounding to a tensor format."""
    text = checkpoint.config.get("text_config", checkpoint.config)
    tensors = {
        name.replace("model.language_model.", "model."): tensor.float()
        for name, tensor in checkpoint.tensors.items()
    }
    embedding = tensors["model.embed_tokens.weight"]
    found = {
        "text/token_embedding": embedding,
        "text/final_norm": tensors["model.norm.weight"],
        "text/output_head": tensors.get("lm_head.weight", embedding),
    }
    for index in range(text["num_hidden_layers"]):
        found |= _layer(_below(tensors, f"model.layers.{index}."), f"text/layers/{index}/")
    if "mtp.fc.weight" in tensors:
        found |= {
            "mtp/input_projection": tensors["mtp.fc.weight"],
            "mtp/embedding_norm": tensors["mtp.pre_fc_norm_embedding.weight"],
            "mtp/hidden_norm": tensors["mtp.pre_fc_norm_hidden.weight"],
            "mtp/final_norm": tensors["mtp.norm.weight"],
        }
        found |= _layer(_below(tensors, "mtp.layers.0."), "mtp/layers/0/")
    return {name: tensor.numpy() for name, tensor in found.items()}


def _below(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _layer(layer: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    found = {
        "input_norm": layer["input_layernorm.weight"],
        "post_attention_norm": layer["post_attention_layernorm.weight"],
    }
    found |= _attention(layer) if "self_attn.q_proj.weight" in layer else _gdn(layer)
    found |= _moe(layer) if "mlp.gate.weight" in layer else _dense(layer)
    return {prefix + name: tensor for name, tensor in found.items()}


def _attention(layer: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    by_head = layer["self_attn.q_proj.weight"].view(HEADS, 2, HEAD, -1)
    return {
        "attention/query": by_head[:, 0].reshape(HEADS * HEAD, -1),
        "attention/gate": by_head[:, 1].reshape(HEADS * HEAD, -1),
        "attention/key": layer["self_attn.k_proj.weight"],
        "attention/value": layer["self_attn.v_proj.weight"],
        "attention/output": layer["self_attn.o_proj.weight"],
        "attention/query_norm": layer["self_attn.q_norm.weight"],
        "attention/key_norm": layer["self_attn.k_norm.weight"],
    }


def _gdn(layer: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    query_key_value = layer["linear_attn.in_proj_qkv.weight"]
    return {
        "gdn/query": query_key_value[:KEY_ROWS],
        "gdn/key": query_key_value[KEY_ROWS : 2 * KEY_ROWS],
        "gdn/value": query_key_value[2 * KEY_ROWS :],
        "gdn/z": layer["linear_attn.in_proj_z.weight"],
        "gdn/a_projection": layer["linear_attn.in_proj_a.weight"],
        "gdn/b_projection": layer["linear_attn.in_proj_b.weight"],
        "gdn/output": layer["linear_attn.out_proj.weight"],
        "gdn/a_log": layer["linear_attn.A_log"],
        "gdn/dt_bias": layer["linear_attn.dt_bias"],
        "gdn/convolution": layer["linear_attn.conv1d.weight"][:, 0].T.contiguous(),
        "gdn/norm": layer["linear_attn.norm.weight"],
    }


def _dense(layer: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"mlp/{part}": layer[f"mlp.{part}_proj.weight"] for part in ("gate", "up", "down")}


def _moe(layer: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {
        "moe/router": layer["mlp.gate.weight"],
        "moe/shared_score": layer["mlp.shared_expert_gate.weight"],
    }
    for part in ("gate", "up", "down"):
        found[f"moe/shared/{part}"] = layer[f"mlp.shared_expert.{part}_proj.weight"]
    for expert in range(found["moe/router"].shape[0]):
        prefix = f"moe/experts/{expert}/"
        if "mlp.experts.gate_up_proj" in layer:
            gate, up = layer["mlp.experts.gate_up_proj"][expert].chunk(2)
            found |= {
                prefix + "gate": gate,
                prefix + "up": up,
                prefix + "down": layer["mlp.experts.down_proj"][expert],
            }
            continue
        for part in ("gate", "up", "down"):
            found[prefix + part] = layer[f"mlp.experts.{expert}.{part}_proj.weight"]
    return found
