"""Nano models: the real architecture at hidden 64, with random weights under which no layer is idle.

Owns configs and tensors in the names and layouts of a Hugging Face checkpoint, and the test side's own
mapping to logical parameters (written from the layouts, independent of the converter). Deterministic by seed:
every tensor depends on its name and the seed alone, so variants share what they have in common.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ninfer.model.config import TextConfig, parse_text_config

Kind = Literal["dense", "moe"]
# Deviations that make logits deviate by about 3 while every layer's share of the residual stream counts;
# larger shares magnify rounding too (measured: max error against float64 2e-5, with shares of 2 1e-4).
HEAD_GAIN, TIED_GAIN, EMBEDDING_GAIN, OUTPUT_GAIN, ATTENTION_GAIN = 3.0, 2.5, 8.0, 0.5, 1.0
LAYER_TYPES = ("linear_attention", "linear_attention", "linear_attention", "full_attention")


def text_config_members(kind: Kind, tied: bool = False, vocab: int = 512, **changes: Any) -> dict[str, Any]:
    """The ``text_config`` of a nano checkpoint as transformers reads it."""
    members: dict[str, Any] = {
        "model_type": "qwen3_5_text" if kind == "dense" else "qwen3_5_moe_text",
        "vocab_size": vocab,
        "hidden_size": 64,
        "num_hidden_layers": len(LAYER_TYPES),
        "layer_types": list(LAYER_TYPES),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": tied,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
        },
        "mtp_num_hidden_layers": 1,
    }
    if kind == "dense":
        members["intermediate_size"] = 128
    else:
        members |= {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
        }
    return members | changes


def artifact_config(members: Mapping[str, Any]) -> TextConfig:
    """The same model as an artifact's checked config."""
    moe = members["model_type"] == "qwen3_5_moe_text"
    kept = {
        name: value
        for name, value in members.items()
        if name not in ("mtp_num_hidden_layers", "rope_parameters")
    }
    rope = {
        n: members["rope_parameters"][n] for n in ("rope_theta", "partial_rotary_factor", "mrope_section")
    }
    architecture = "Qwen3_5MoeForCausalLM" if moe else "Qwen3_5ForCausalLM"
    return parse_text_config(kept | {"architectures": [architecture], "rope_parameters": rope})


def checkpoint_tensors(members: Mapping[str, Any], mtp: bool = True, seed: int = 0) -> dict[str, Tensor]:
    """Every tensor of the checkpoint, float32 holding bf16 values, under its published name."""
    sizes = _sizes(members)
    root = "model"
    tensors = dict(_stem(root, members, sizes, seed))
    for index, kind in enumerate(members["layer_types"]):
        tensors |= _layer(f"{root}.layers.{index}", kind, members, sizes, seed)
    if mtp:
        hidden = sizes["hidden"]
        tensors["mtp.fc.weight"] = _matrix("mtp.fc.weight", hidden, 2 * hidden, seed)
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            tensors[f"mtp.{name}.weight"] = _norm(f"mtp.{name}.weight", hidden, seed)
        tensors |= _layer("mtp.layers.0", "full_attention", members, sizes, seed)
    return tensors


def _sizes(members: Mapping[str, Any]) -> dict[str, int]:
    return {
        "hidden": members["hidden_size"],
        "query": members["num_attention_heads"] * members["head_dim"],
        "kv": members["num_key_value_heads"] * members["head_dim"],
        "head": members["head_dim"],
        "rotary": int(members["head_dim"] * members["rope_parameters"]["partial_rotary_factor"]),
        "gdn_key": members["linear_num_key_heads"] * members["linear_key_head_dim"],
        "gdn_value": members["linear_num_value_heads"] * members["linear_value_head_dim"],
        "gdn_heads": members["linear_num_value_heads"],
        "gdn_head": members["linear_value_head_dim"],
        "taps": members["linear_conv_kernel_dim"],
    }


def _stem(
    root: str, members: Mapping[str, Any], sizes: Mapping[str, int], seed: int
) -> Iterator[tuple[str, Tensor]]:
    vocab, hidden = members["vocab_size"], sizes["hidden"]
    # The head alone sets the logits' deviation: hidden rows are normed to about 1 per dimension.
    # A tied head is the embedding: its rows must stay small beside the layers, or every token repeats itself.
    gain = TIED_GAIN if members["tie_word_embeddings"] else EMBEDDING_GAIN
    yield f"{root}.embed_tokens.weight", _matrix(f"{root}.embed_tokens.weight", vocab, hidden, seed, gain)
    yield f"{root}.norm.weight", _norm(f"{root}.norm.weight", hidden, seed)
    if not members["tie_word_embeddings"]:
        yield "lm_head.weight", _matrix("lm_head.weight", vocab, hidden, seed, HEAD_GAIN)


def _layer(
    prefix: str, kind: str, members: Mapping[str, Any], sizes: Mapping[str, int], seed: int
) -> dict[str, Tensor]:
    mixer = _attention if kind == "full_attention" else _gdn
    feed_forward = _moe if "num_experts" in members else _dense
    tensors = {
        f"{prefix}.{name}.weight": _norm(f"{prefix}.{name}.weight", sizes["hidden"], seed)
        for name in ("input_layernorm", "post_attention_layernorm")
    }
    return tensors | dict(mixer(prefix, sizes, seed)) | dict(feed_forward(prefix, members, sizes, seed))


def _attention(prefix: str, sizes: Mapping[str, int], seed: int) -> Iterator[tuple[str, Tensor]]:
    for name, rows, gain in (
        ("q_proj", 2 * sizes["query"], 1.0),
        ("k_proj", sizes["kv"], 1.0),
        ("v_proj", sizes["kv"], 1.0),
    ):
        full = f"{prefix}.self_attn.{name}.weight"
        yield full, _matrix(full, rows, sizes["hidden"], seed, gain)
    full = f"{prefix}.self_attn.o_proj.weight"
    yield full, _matrix(full, sizes["hidden"], sizes["query"], seed, ATTENTION_GAIN)
    for name in ("q_norm", "k_norm"):
        full = f"{prefix}.self_attn.{name}.weight"
        # Scores that look at few tokens, and at where they stand: most of them comes from the rotated part.
        weight = _random(full, seed).normal(0, 0.3, sizes["head"])
        weight[: sizes["rotary"]] += 1.5
        yield full, _bf16(weight)


def _gdn(prefix: str, sizes: Mapping[str, int], seed: int) -> Iterator[tuple[str, Tensor]]:
    prefix = f"{prefix}.linear_attn"
    channels = 2 * sizes["gdn_key"] + sizes["gdn_value"]
    for name, rows in (
        ("in_proj_qkv", channels),
        ("in_proj_z", sizes["gdn_value"]),
        ("in_proj_a", sizes["gdn_heads"]),
        ("in_proj_b", sizes["gdn_heads"]),
    ):
        yield f"{prefix}.{name}.weight", _matrix(f"{prefix}.{name}.weight", rows, sizes["hidden"], seed)
    full = f"{prefix}.out_proj.weight"
    yield full, _matrix(full, sizes["hidden"], sizes["gdn_value"], seed, OUTPUT_GAIN)
    full = f"{prefix}.conv1d.weight"
    # Wide: behind SiLU queries and keys then lean to one side, and few reads cancel to noise that the norm
    # blows up (measured: the largest logit error of tied models fell from 1e-4 to 4e-5).
    yield full, _bf16(_random(full, seed).normal(0, 2, (channels, 1, sizes["taps"])))
    # Decays from nearly none to a few tokens, so that both old and new tokens count.
    for name, low, high in (("A_log", -3.0, 1.0), ("dt_bias", -2.0, 1.0)):
        yield (
            f"{prefix}.{name}",
            _bf16(_random(f"{prefix}.{name}", seed).uniform(low, high, sizes["gdn_heads"])),
        )
    full = f"{prefix}.norm.weight"
    yield full, _bf16(1 + _random(full, seed).normal(0, 0.3, sizes["gdn_head"]))


def _dense(
    prefix: str, members: Mapping[str, Any], sizes: Mapping[str, int], seed: int
) -> Iterator[tuple[str, Tensor]]:
    yield from _swiglu(f"{prefix}.mlp", sizes["hidden"], members["intermediate_size"], seed)


def _moe(
    prefix: str, members: Mapping[str, Any], sizes: Mapping[str, int], seed: int
) -> Iterator[tuple[str, Tensor]]:
    prefix, hidden = f"{prefix}.mlp", sizes["hidden"]
    yield f"{prefix}.gate.weight", _matrix(f"{prefix}.gate.weight", members["num_experts"], hidden, seed)
    experts = [
        dict(_swiglu(f"{prefix}.experts.{expert}", hidden, members["moe_intermediate_size"], seed))
        for expert in range(members["num_experts"])
    ]
    gate, up, down = (
        [tensors[f"{prefix}.experts.{e}.{name}_proj.weight"] for e, tensors in enumerate(experts)]
        for name in ("gate", "up", "down")
    )
    yield f"{prefix}.experts.gate_up_proj", torch.cat([torch.stack(gate), torch.stack(up)], dim=1)
    yield f"{prefix}.experts.down_proj", torch.stack(down)
    yield from _swiglu(f"{prefix}.shared_expert", hidden, members["shared_expert_intermediate_size"], seed)
    full = f"{prefix}.shared_expert_gate.weight"
    yield full, _matrix(full, 1, hidden, seed)


def _swiglu(prefix: str, hidden: int, inner: int, seed: int) -> Iterator[tuple[str, Tensor]]:
    for name, rows, columns, gain in (
        ("gate", inner, hidden, 2.0),
        ("up", inner, hidden, 1.0),
        ("down", hidden, inner, OUTPUT_GAIN),
    ):
        full = f"{prefix}.{name}_proj.weight"
        yield full, _matrix(full, rows, columns, seed, gain)


def _matrix(name: str, rows: int, columns: int, seed: int, gain: float = 1.0) -> Tensor:
    """Unit input gives output of deviation ``gain``."""
    return _bf16(_random(name, seed).normal(0, gain / columns**0.5, (rows, columns)))


def _norm(name: str, size: int, seed: int) -> Tensor:
    return _bf16(_random(name, seed).normal(0, 0.3, size))


def _random(name: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _bf16(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float32)).to(torch.bfloat16).to(torch.float32)


def logical_weights(
    members: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Checkpoint tensors as logical parameters (text, and MTP where present), as the reference takes them."""
    root, weights = "model", dict[str, Tensor]()
    weights["text/token_embedding"] = tensors[f"{root}.embed_tokens.weight"]
    weights["text/final_norm"] = tensors[f"{root}.norm.weight"]
    weights["text/output_head"] = tensors.get("lm_head.weight", weights["text/token_embedding"])
    for index, kind in enumerate(members["layer_types"]):
        weights |= _logical_layer(f"text/layers/{index}", f"{root}.layers.{index}", kind, members, tensors)
    if "mtp.fc.weight" in tensors:
        weights["mtp/input_projection"] = tensors["mtp.fc.weight"]
        weights["mtp/embedding_norm"] = tensors["mtp.pre_fc_norm_embedding.weight"]
        weights["mtp/hidden_norm"] = tensors["mtp.pre_fc_norm_hidden.weight"]
        weights["mtp/final_norm"] = tensors["mtp.norm.weight"]
        weights |= _logical_layer("mtp/layers/0", "mtp.layers.0", "full_attention", members, tensors)
    return {name: tensor.to(dtype) for name, tensor in weights.items()}


def _logical_layer(
    name: str, source: str, kind: str, members: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    layer = {
        key.removeprefix(f"{source}.").removesuffix(".weight"): tensor
        for key, tensor in tensors.items()
        if key.startswith(f"{source}.")
    }
    parts = {"input_norm": layer["input_layernorm"], "post_attention_norm": layer["post_attention_layernorm"]}
    parts |= _logical_attention(members, layer) if kind == "full_attention" else _logical_gdn(members, layer)
    parts |= _logical_moe(layer) if "num_experts" in members else _logical_swiglu("mlp", "mlp", layer)
    return {f"{name}/{part}": tensor for part, tensor in parts.items()}


def _logical_attention(members: Mapping[str, Any], layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # Query and gate rows alternate by head.
    query_gate = layer["self_attn.q_proj"].unflatten(0, (members["num_attention_heads"], 2, -1))
    parts = {
        "attention/query": query_gate[:, 0].flatten(0, 1),
        "attention/gate": query_gate[:, 1].flatten(0, 1),
    }
    names = {
        "key": "k_proj",
        "value": "v_proj",
        "output": "o_proj",
        "query_norm": "q_norm",
        "key_norm": "k_norm",
    }
    return parts | {f"attention/{part}": layer[f"self_attn.{name}"] for part, name in names.items()}


def _logical_gdn(members: Mapping[str, Any], layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    sizes = _sizes(members)
    query, key, value = layer["linear_attn.in_proj_qkv"].split(
        [sizes["gdn_key"], sizes["gdn_key"], sizes["gdn_value"]]
    )
    parts = {"gdn/query": query, "gdn/key": key, "gdn/value": value}
    parts["gdn/convolution"] = layer["linear_attn.conv1d"][:, 0].T
    names = {
        "z": "in_proj_z",
        "a_projection": "in_proj_a",
        "b_projection": "in_proj_b",
        "output": "out_proj",
        "a_log": "A_log",
        "dt_bias": "dt_bias",
        "norm": "norm",
    }
    return parts | {f"gdn/{part}": layer[f"linear_attn.{name}"] for part, name in names.items()}


def _logical_swiglu(part: str, source: str, layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{part}/{name}": layer[f"{source}.{name}_proj"] for name in ("gate", "up", "down")}


def _logical_moe(layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = {"moe/router": layer["mlp.gate"], "moe/shared_score": layer["mlp.shared_expert_gate"]}
    parts |= _logical_swiglu("moe/shared", "mlp.shared_expert", layer)
    for expert, (gate_up, down) in enumerate(
        zip(layer["mlp.experts.gate_up_proj"], layer["mlp.experts.down_proj"], strict=True)
    ):
        gate, up = gate_up.chunk(2)
        parts |= {f"moe/experts/{expert}/{n}": t for n, t in (("gate", gate), ("up", up), ("down", down))}
    return parts
