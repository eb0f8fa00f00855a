"""Nano checkpoints for the conversion tests: transformers writes them, tests bend them.

``Nano`` keeps config and tensors in memory so that a test can rename, drop or retype some and write the
result.
"""

from __future__ import annotations

import copy
import functools
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]

ROPE = {
    "rope_type": "default",
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "mrope_interleaved": True,
    "mrope_section": [3, 3, 2],
}
GEOMETRY: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "max_position_embeddings": 4096,
    "rope_parameters": ROPE,
}
DENSE = {"intermediate_size": 160}
MOE = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
VISION = {
    "depth": 1,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_heads": 4,
    "out_hidden_size": 64,
    "num_position_embeddings": 64,
}


@dataclass
class Nano:
    """A checkpoint in memory: ``config.json``, tensors, frontend files."""

    config: dict[str, Any]
    tensors: Tensors
    files: dict[str, Any] = field(default_factory=dict)

    def write(self, directory: Path, shards: int = 1) -> Path:
        """Write it as a Hugging Face directory."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in {"config.json": self.config, **self.files}.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (directory / name).write_text(text, encoding="utf-8")
        if shards == 1:
            save_file(self.tensors, directory / "model.safetensors")
            return directory
        names = sorted(self.tensors)
        owner = {name: f"model-{index % shards + 1:05d}.safetensors" for index, name in enumerate(names)}
        for shard in set(owner.values()):
            save_file({n: self.tensors[n] for n in names if owner[n] == shard}, directory / shard)
        index = {"metadata": {}, "weight_map": owner}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
        return directory

    def mapped(self, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Nano:
        """A copy with every tensor changed."""
        return Nano(self.config, {name: change(name, t) for name, t in self.tensors.items()}, self.files)

    def renamed(self, change: Callable[[str], str]) -> Nano:
        """A copy with other tensor names."""
        return Nano(self.config, {change(name): t for name, t in self.tensors.items()}, self.files)


def frontend_files(vocabulary: int = 300) -> dict[str, Any]:
    """Frontend files that are well-formed for the converter; no one encodes text with them."""
    vocab = {f"t{index}": index for index in range(vocabulary - 6)}
    return {
        "tokenizer.json": {
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
            "added_tokens": [
                {"id": vocabulary - 6, "content": "<|endoftext|>"},
                {"id": vocabulary - 5, "content": "<|im_end|>"},
            ],
        },
        "tokenizer_config.json": {
            "eos_token": "<|im_end|>",
            "added_tokens_decoder": {str(vocabulary - 4): {"content": "<|audio_pad|>"}},
        },
        "chat_template.jinja": "{{ messages[0].content }} – ü",
        "generation_config.json": {"eos_token_id": [vocabulary - 5, vocabulary - 6]},
    }


def nano(kind: str, *, tied: bool = False, dtype: torch.dtype = torch.float32, mtp: bool = True) -> Nano:
    """A fresh copy of one of the base checkpoints: ``dense``, ``dense-vl``, ``moe`` or ``moe-vl``."""
    return copy.deepcopy(_saved(kind, tied, dtype, mtp))


@functools.cache
def _saved(kind: str, tied: bool, dtype: torch.dtype, mtp: bool) -> Nano:
    torch.manual_seed(17)
    model = _model(kind, tied)
    for parameter in model.parameters():  # init leaves norms at 0 and hides every mistake in them
        torch.nn.init.normal_(parameter, std=0.2)
    with tempfile.TemporaryDirectory() as name:
        model.to(dtype).save_pretrained(name)
        config = json.loads((Path(name) / "config.json").read_text())
        tensors = load_file(Path(name) / "model.safetensors")
    if mtp:
        tensors |= mtp_tensors(tensors, kind, dtype)
    return Nano(config, tensors, frontend_files())


def _model(kind: str, tied: bool) -> Any:
    import transformers as hf

    text = {**GEOMETRY, **(MOE if kind.startswith("moe") else DENSE)}
    match kind:
        case "dense":
            return hf.Qwen3_5ForCausalLM(hf.Qwen3_5TextConfig(**text, tie_word_embeddings=tied))
        case "moe":
            return hf.Qwen3_5MoeForCausalLM(hf.Qwen3_5MoeTextConfig(**text, tie_word_embeddings=tied))
        case "dense-vl":
            config = hf.Qwen3_5Config(text_config=text, vision_config=VISION, tie_word_embeddings=tied)
            return hf.Qwen3_5ForConditionalGeneration(config)
        case _:
            config = hf.Qwen3_5MoeConfig(text_config=text, vision_config=VISION, tie_word_embeddings=tied)
            return hf.Qwen3_5MoeForConditionalGeneration(config)


def mtp_tensors(tensors: Tensors, kind: str, dtype: torch.dtype) -> Tensors:
    """An MTP head with the tensors of the last (full-attention) layer's shapes."""
    last = GEOMETRY["num_hidden_layers"] - 1
    infix = f"layers.{last}."
    layer = {
        name.split(infix)[1]: t.shape for name, t in tensors.items() if infix in name and "visual" not in name
    }
    hidden = GEOMETRY["hidden_size"]
    shapes = {f"mtp.layers.0.{name}": tuple(shape) for name, shape in layer.items()}
    shapes |= {
        "mtp.fc.weight": (hidden, 2 * hidden),
        "mtp.norm.weight": (hidden,),
        "mtp.pre_fc_norm_embedding.weight": (hidden,),
        "mtp.pre_fc_norm_hidden.weight": (hidden,),
    }
    generator = torch.Generator().manual_seed(5)
    return {name: (torch.randn(shape, generator=generator) * 0.2).to(dtype) for name, shape in shapes.items()}


def fused_experts(checkpoint: Nano) -> Nano:
    """The spelling of the official bf16 checkpoints: all experts of a layer in two tensors."""
    tensors = dict(checkpoint.tensors)
    prefixes = {name.split("mlp.experts.")[0] for name in tensors if "mlp.experts." in name}
    for prefix in prefixes:
        rows = [
            [tensors.pop(f"{prefix}mlp.experts.{e}.{part}_proj.weight") for part in ("gate", "up", "down")]
            for e in range(MOE["num_experts"])
        ]
        tensors[f"{prefix}mlp.experts.gate_up_proj"] = torch.stack([torch.cat(row[:2]) for row in rows])
        tensors[f"{prefix}mlp.experts.down_proj"] = torch.stack([row[2] for row in rows])
    return Nano(checkpoint.config, tensors, checkpoint.files)
