"""Small programs for Triton's interpreter: one layer of each kind, a head, two lanes, four columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ninfer.artifact import Artifact
from ninfer.fast.program.gpu.mtp_weights import load_mtp_model
from ninfer.fast.program.gpu.parameters import load_text_model
from ninfer.fast.program.gpu.program import GpuOptions, GpuProgram
from ninfer.fast.program.gpu.weights import GpuLoader
from ninfer.model.config import TextConfig, parse_text_config
from tests.support.nano import VOCABULARY, nano_artifact

TWO_LAYERS: dict[str, Any] = {
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
}


def small_artifact(directory: Path) -> tuple[Path, TextConfig]:
    """A dense model of two layers with a prediction head."""
    path = nano_artifact(directory, "dense", **TWO_LAYERS)
    with Artifact.open(path) as artifact:
        return path, parse_text_config(artifact.directory.components["text"].config)


def small_program(path: Path, max_context: int, mtp: bool = False) -> GpuProgram:
    """A program over it on the CPU, in float32 with bf16 keys and values."""
    device = torch.device("cpu")
    with Artifact.open(path) as artifact:
        config = parse_text_config(artifact.directory.components["text"].config)
        loader = GpuLoader(artifact, device)
        model = load_text_model(loader, config)
        head = load_mtp_model(loader, config, model, proposal_head=False) if mtp else None
    options = GpuOptions(
        lanes=2, max_context=max_context, pages=8 * max_context // 64, kv_format="bf16", prefill_chunk=64,
        vocabulary=VOCABULARY, columns=16, widths=(4,), mtp=mtp, snapshot_slots=16, activations=torch.float32,
    )  # fmt: skip
    return GpuProgram(model, config, options, device, head)
