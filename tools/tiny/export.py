"""A training checkpoint as a Hugging Face directory and as the bundled artifact.

    python -m tools.tiny.export CHECKPOINT_DIR --out build/ninfer-tiny [--artifact
    ninfer/bundled/ninfer-tiny.ninfer]

Runs on a CPU in seconds. The artifact is written by ``ninfer-convert``'s own code and replaces an older one.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ninfer import bundled
from ninfer.convert import convert
from tools.tiny import checkpoint, tokenizer
from tools.tiny.shape import TINY, Shape

LIMIT_BYTES = 15 * 2**20
_DESCRIPTION = (
    "A small demonstration model of the NInfer project, trained from scratch; see docs/ninfer-tiny.md"
)


def write_directory(directory: Path, weights: dict[str, Tensor], shape: Shape = TINY) -> Path:
    """Write config.json, model.safetensors and the tokenizer files; ``weights`` by checkpoint name."""
    files = tokenizer.resources()
    stops = json.loads(files["generation_config.json"])
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    config = json.dumps(shape.hf_config(stops["eos_token_id"][0]), indent=2)
    (directory / "config.json").write_text(config + "\n")
    tensors = {name: weights[name].detach().to(torch.bfloat16).contiguous() for name in shape.parameters()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def write_artifact(directory: Path, artifact: Path, metadata: dict[str, Any]) -> Path:
    """Convert ``directory``; an artifact that stands there already is replaced once the new one is whole."""
    fresh = artifact.with_name(f"{artifact.stem}.new.ninfer")
    fresh.unlink(missing_ok=True)
    convert(directory, fresh, "bf16", name=bundled.NAME, metadata=metadata)
    size = fresh.stat().st_size
    if size > LIMIT_BYTES:
        fresh.unlink()
        raise ValueError(f"the artifact takes {size} bytes; at most {LIMIT_BYTES} may travel")
    fresh.replace(artifact)
    return artifact


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools.tiny.export", description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build") / bundled.NAME)
    parser.add_argument("--artifact", type=Path, default=bundled.path())
    arguments = parser.parse_args()
    tensors, state = checkpoint.read(arguments.checkpoint)
    tokenizer.check_fingerprint(state)
    weights = {name.removeprefix("weight/"): t for name, t in tensors.items() if name.startswith("weight/")}
    directory = write_directory(arguments.out, weights)
    trained = f"{state['tokens'] / 1e6:.0f} million tokens"
    written = write_artifact(directory, arguments.artifact, metadata_of(trained))
    print(f"{written}: {written.stat().st_size} bytes")


def metadata_of(trained: str) -> dict[str, str]:
    """What the artifact says of itself."""
    return {
        "description": _DESCRIPTION,
        "license": "Apache-2.0",
        "trained_on": trained,
        "demonstration": "true",
    }


if __name__ == "__main__":
    main()
