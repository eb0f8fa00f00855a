"""The geometry of ninfer-tiny and its Hugging Face configuration.

Owns sizes and parameter names; knows nothing of training. Names are those of a text-only Qwen3.5 checkpoint
(``model.*`` and ``mtp.*``), so that the exporter copies tensors without renaming.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one model. Layer i is full attention where (i + 1) is a multiple of ``attention_every``."""

    vocab: int = 3584
    hidden: int = 256
    mlp: int = 512
    layers: int = 8
    attention_every: int = 4
    query_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    gdn_heads: int = 4
    gdn_dim: int = 64
    taps: int = 4
    rotary: float = 0.25
    theta: float = 1e7
    eps: float = 1e-6
    max_positions: int = 262_144

    def is_attention(self, layer: int) -> bool:
        return (layer + 1) % self.attention_every == 0

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.rotary)

    @property
    def gdn_width(self) -> int:
        """Width of the query, key or value part of a GDN layer."""
        return self.gdn_heads * self.gdn_dim

    @property
    def mrope_section(self) -> list[int]:
        """Frequencies per position axis (T, H, W), interleaved: every third pair goes to H and to W."""
        pairs = self.rotary_dim // 2
        return [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3]

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every trainable tensor; the output head is the embedding."""
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            mixer = self._attention() if self.is_attention(layer) else self._gdn()
            shapes |= {prefix + name: size for name, size in (self._common() | mixer).items()}
        shapes["model.norm.weight"] = (self.hidden,)
        shapes["mtp.fc.weight"] = (self.hidden, 2 * self.hidden)
        for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            shapes[f"mtp.{norm}.weight"] = (self.hidden,)
        mtp_layer = self._common() | self._attention()
        return shapes | {f"mtp.layers.0.{name}": size for name, size in mtp_layer.items()}

    def _common(self) -> dict[str, tuple[int, ...]]:
        return {
            "input_layernorm.weight": (self.hidden,),
            "post_attention_layernorm.weight": (self.hidden,),
            "mlp.gate_proj.weight": (self.mlp, self.hidden),
            "mlp.up_proj.weight": (self.mlp, self.hidden),
            "mlp.down_proj.weight": (self.hidden, self.mlp),
        }

    def _attention(self) -> dict[str, tuple[int, ...]]:
        return {
            "self_attn.q_proj.weight": (2 * self.query_heads * self.head_dim, self.hidden),
            "self_attn.k_proj.weight": (self.kv_heads * self.head_dim, self.hidden),
            "self_attn.v_proj.weight": (self.kv_heads * self.head_dim, self.hidden),
            "self_attn.o_proj.weight": (self.hidden, self.query_heads * self.head_dim),
            "self_attn.q_norm.weight": (self.head_dim,),
            "self_attn.k_norm.weight": (self.head_dim,),
        }

    def _gdn(self) -> dict[str, tuple[int, ...]]:
        return {
            "linear_attn.in_proj_qkv.weight": (3 * self.gdn_width, self.hidden),
            "linear_attn.in_proj_z.weight": (self.gdn_width, self.hidden),
            "linear_attn.in_proj_a.weight": (self.gdn_heads, self.hidden),
            "linear_attn.in_proj_b.weight": (self.gdn_heads, self.hidden),
            "linear_attn.out_proj.weight": (self.hidden, self.gdn_width),
            "linear_attn.conv1d.weight": (3 * self.gdn_width, 1, self.taps),
            "linear_attn.A_log": (self.gdn_heads,),
            "linear_attn.dt_bias": (self.gdn_heads,),
            "linear_attn.norm.weight": (self.gdn_dim,),
        }

    def hf_config(self, eos: int) -> dict[str, Any]:
        """``config.json`` of the checkpoint; ``eos`` is the id that ends a text."""
        kinds = ("linear_attention", "full_attention")
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers,
            "layer_types": [kinds[self.is_attention(layer)] for layer in range(self.layers)],
            "full_attention_interval": self.attention_every,
            "num_attention_heads": self.query_heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "attn_output_gate": True,
            "attention_bias": False,
            "linear_num_key_heads": self.gdn_heads,
            "linear_num_value_heads": self.gdn_heads,
            "linear_key_head_dim": self.gdn_dim,
            "linear_value_head_dim": self.gdn_dim,
            "linear_conv_kernel_dim": self.taps,
            "hidden_act": "silu",
            "rms_norm_eps": self.eps,
            "max_position_embeddings": self.max_positions,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.theta,
                "partial_rotary_factor": self.rotary,
                "mrope_interleaved": True,
                "mrope_section": self.mrope_section,
            },
            "mtp_num_hidden_layers": 1,
            "mtp_use_dedicated_embeddings": False,
            "eos_token_id": eos,
            "dtype": "bfloat16",
            "mamba_ssm_dtype": "float32",
        }


TINY = Shape()
