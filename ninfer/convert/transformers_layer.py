"""One decoder layer as transformers runs it, from a checkpoint's tensors or from an artifact's
parameters.

Owns everything that needs torch and transformers, both optional for conversion. The way back from logical
parameters to transformers' names is written out here on its own, not derived from ``spec/convert.yaml``:
a table that splits a matrix wrongly must show up as an error, not cancel out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig
from transformers.models.qwen3_5 import configuration_qwen3_5 as dense_configs
from transformers.models.qwen3_5 import modeling_qwen3_5 as dense_models
from transformers.models.qwen3_5_moe import configuration_qwen3_5_moe as moe_configs
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as moe_models

from ninfer.artifact import Artifact
from ninfer.convert.checkpoint import Checkpoint
from ninfer.model.config import TextConfig

State = dict[str, np.ndarray[Any, Any]]


def source_config(checkpoint: Checkpoint) -> Any:
    """The text config as transformers itself reads it from the checkpoint."""
    return AutoConfig.from_pretrained(checkpoint.directory).get_text_config()


def artifact_config(config: Mapping[str, Any], is_moe: bool) -> Any:
    """A transformers config made of an artifact's ``components.text.config`` alone."""
    members = {name: value for name, value in config.items() if name != "architectures"}
    members["rope_parameters"] = {
        **members["rope_parameters"],
        "rope_type": "default",
        "mrope_interleaved": True,
    }
    kind: Any = moe_configs.Qwen3_5MoeTextConfig if is_moe else dense_configs.Qwen3_5TextConfig
    return kind(**members)


def source_state(checkpoint: Checkpoint, prefix: str) -> State:
    """Every tensor below ``prefix`` under transformers' own names; single experts are stacked."""
    names = [name for name in checkpoint.tensors if name.startswith(prefix)]
    state = {name.removeprefix(prefix): _whole(checkpoint, name) for name in names}
    single = [name for name in state if name.startswith("mlp.experts.") and name.endswith("_proj.weight")]
    if single:
        experts = {name: state.pop(name) for name in single}
        count = len({name.split(".")[2] for name in single})
        state["mlp.experts.gate_up_proj"] = np.stack(
            [
                np.concatenate([experts[f"mlp.experts.{e}.{part}_proj.weight"] for part in ("gate", "up")])
                for e in range(count)
            ]
        )
        state["mlp.experts.down_proj"] = np.stack(
            [experts[f"mlp.experts.{e}.down_proj.weight"] for e in range(count)]
        )
    return state


def artifact_state(artifact: Artifact, config: TextConfig, index: int) -> State:
    """The same tensors put together from the artifact's decoded logical parameters."""
    prefix = f"text/layers/{index}/"

    def get(name: str) -> np.ndarray[Any, Any]:
        return artifact.parameter(prefix + name)

    state = {
        "input_layernorm.weight": get("input_norm"),
        "post_attention_layernorm.weight": get("post_attention_norm"),
    }
    if config.layer_types[index] == "full_attention":
        assert config.attention is not None
        heads = (config.attention.query_heads, config.attention.head_dim, config.hidden)
        by_head = np.stack(
            [get("attention/query").reshape(heads), get("attention/gate").reshape(heads)], axis=1
        )
        state |= {
            "self_attn.q_proj.weight": by_head.reshape(-1, config.hidden),
            "self_attn.k_proj.weight": get("attention/key"),
            "self_attn.v_proj.weight": get("attention/value"),
            "self_attn.o_proj.weight": get("attention/output"),
            "self_attn.q_norm.weight": get("attention/query_norm"),
            "self_attn.k_norm.weight": get("attention/key_norm"),
        }
    else:
        state |= {
            "linear_attn.in_proj_qkv.weight": np.concatenate(
                [get("gdn/query"), get("gdn/key"), get("gdn/value")]
            ),
            "linear_attn.in_proj_z.weight": get("gdn/z"),
            "linear_attn.in_proj_a.weight": get("gdn/a_projection"),
            "linear_attn.in_proj_b.weight": get("gdn/b_projection"),
            "linear_attn.out_proj.weight": get("gdn/output"),
            "linear_attn.A_log": get("gdn/a_log"),
            "linear_attn.dt_bias": get("gdn/dt_bias"),
            "linear_attn.conv1d.weight": np.ascontiguousarray(get("gdn/convolution").T)[:, None, :],
            "linear_attn.norm.weight": get("gdn/norm"),
        }
    if config.moe is None:
        return state | {f"mlp.{part}_proj.weight": get(f"mlp/{part}") for part in ("gate", "up", "down")}
    experts = range(config.moe.experts)
    return state | {
        "mlp.gate.weight": get("moe/router"),
        "mlp.shared_expert_gate.weight": get("moe/shared_score"),
        **{
            f"mlp.shared_expert.{part}_proj.weight": get(f"moe/shared/{part}")
            for part in ("gate", "up", "down")
        },
        "mlp.experts.gate_up_proj": np.stack(
            [np.concatenate([get(f"moe/experts/{e}/gate"), get(f"moe/experts/{e}/up")]) for e in experts]
        ),
        "mlp.experts.down_proj": np.stack([get(f"moe/experts/{e}/down") for e in experts]),
    }


def run_layer(config: Any, index: int, state: State, hidden: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The layer's output in float32.

    Shapes: hidden and result [T, hidden]; text positions 0..T-1, causal.
    """
    module: Any = moe_models if "moe" in config.model_type else dense_models
    is_moe = module is moe_models
    config._attn_implementation = config._experts_implementation = "eager"
    with torch.device("meta"):
        layer = (module.Qwen3_5MoeDecoderLayer if is_moe else module.Qwen3_5DecoderLayer)(config, index)
    layer.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()}, assign=True)
    rotary = (module.Qwen3_5MoeTextRotaryEmbedding if is_moe else module.Qwen3_5TextRotaryEmbedding)(config)
    states = torch.from_numpy(hidden)[None]
    count = states.shape[1]
    mask = None
    if config.layer_types[index] == "full_attention":
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
    with torch.inference_mode():
        positions = rotary(states, torch.arange(count).expand(3, 1, count))
        output: torch.Tensor = layer(states, position_embeddings=positions, attention_mask=mask)
    return output[0].numpy()


def _whole(checkpoint: Checkpoint, name: str) -> np.ndarray[Any, Any]:
    tensor = checkpoint.tensors[name]
    return checkpoint.read(name, 0, tensor.elements).reshape(tensor.shape)
