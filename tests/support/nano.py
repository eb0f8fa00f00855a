"""Nano models on disk: a Hugging Face checkpoint directory, and the artifact our converter makes of it.

Owns files only; configs and weights stand in ``nano_weights.py``, the tokenizer in ``tokenizer.py``. The same
arguments give the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ninfer.convert import convert
from tests.support.nano_weights import Kind, checkpoint_tensors, text_config_members
from tests.support.tokenizer import write_tokenizer

# Ids that the tokenizer knows, and rows of the embedding: the last ones are padding nobody may draw.
VOCABULARY, ROWS = 512, 576


def nano_checkpoint(
    directory: Path,
    kind: Kind = "dense",
    tied: bool = False,
    mtp: bool = True,
    seed: int = 0,
    **changes: Any,
) -> Path:
    """Write config, bf16 weights and tokenizer files; ``changes`` replace members of the text config."""
    members = text_config_members(kind, tied, **({"vocab": ROWS} | changes))
    write_tokenizer(directory, VOCABULARY)
    tensors = checkpoint_tensors(members, mtp, seed)
    save_file(
        {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()},
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )
    family = "Qwen3_5" if kind == "dense" else "Qwen3_5Moe"
    config = {"architectures": [f"{family}ForCausalLM"], "dtype": "bfloat16", **members}
    (directory / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return directory


def nano_artifact(
    directory: Path,
    kind: Kind = "dense",
    tied: bool = False,
    mtp: bool = True,
    seed: int = 0,
    recipe: str = "bf16",
    **changes: Any,
) -> Path:
    """Convert such a checkpoint to ``directory/nano.ninfer``; ``bf16`` keeps every value as it is."""
    checkpoint = nano_checkpoint(directory / "checkpoint", kind, tied, mtp, seed, **changes)
    out = directory / "nano.ninfer"
    convert(checkpoint, out, recipe, name=f"nano-{kind}")
    return out
