"""How much memory and time a conversion takes: a random 0.8B-shaped checkpoint through every recipe.

Example: ``python -m tools.bench.convert_memory --directory /tmp`` (needs about 6 GB of disk while it
runs)

Writes the checkpoint (bf16, tied, with MTP head), converts it once per recipe in a process of its own,
and prints recipe, seconds, peak resident memory and artifact bytes. Exits 1 when a recipe needs more than
``--limit-mib``.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ninfer.convert import convert, recipe_names
from ninfer.convert.architecture import read_architecture
from ninfer.convert.tensor_table import expected_tensors

# The published 0.8B text model (hidden 1024, 24 layers, tied) and what its config.json says.
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "full_attention_interval": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "mtp_num_hidden_layers": 1,
        "eos_token_id": 248044,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
        },
    },
}
TOKENS = 248077
BLOCK = 1 << 22


def main() -> None:
    """Write the checkpoint, convert it in every recipe, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--directory", help="where the scratch folder goes (default: the system's)")
    parser.add_argument(
        "--limit-mib", type=float, default=3e9 / 2**20, help="fail above this peak (default: 3 GB)"
    )
    parser.add_argument("--convert", nargs=3, metavar=("CHECKPOINT", "OUT", "RECIPE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.convert:
        print(json.dumps(measure(*arguments.convert)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as scratch:
        sys.exit(0 if run(Path(scratch), arguments.limit_mib) else 1)


def run(scratch: Path, limit_mib: float) -> bool:
    """One line per recipe; whether all stayed below the limit."""
    started = time.monotonic()
    checkpoint = write_checkpoint(scratch / "random-0.8b")
    size = sum(file.stat().st_size for file in checkpoint.iterdir())
    print(f"checkpoint of {size:,} bytes written in {time.monotonic() - started:.0f} s", flush=True)
    print(f"{'recipe':14} {'seconds':>8} {'peak MiB':>9} {'bytes':>14} {'parameters':>12}")
    passed = True
    for recipe in recipe_names():
        out = scratch / f"{recipe}.ninfer"
        command = [sys.executable, "-m", "tools.bench.convert_memory", "--convert", checkpoint, out, recipe]
        row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        print(
            f"{recipe:14} {row['seconds']:8.1f} {row['peak_mib']:9.0f} {out.stat().st_size:14,} "
            f"{row['parameters']:12,}",
            flush=True,
        )
        out.unlink()
        passed &= row["peak_mib"] <= limit_mib
    return passed


def measure(checkpoint: str, out: str, recipe: str) -> dict[str, float]:
    """Convert in this process and say what it took."""
    started = time.monotonic()
    done = convert(Path(checkpoint), Path(out), recipe)
    seconds = time.monotonic() - started
    return {"seconds": seconds, "peak_mib": peak_mib(), "parameters": done.parameters}


def peak_mib() -> float:
    """This process's highest resident set; ``ru_maxrss`` would also count the parent that started it."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def write_checkpoint(directory: Path) -> Path:
    """A checkpoint directory with random weights in one safetensors file."""
    directory.mkdir()
    root = "model.language_model.embed_tokens.weight"
    config = read_architecture(CONFIG).text
    tensors = list(expected_tensors(config, True, {root}))
    header: dict[str, Any] = {}
    end = 0
    for tensor in tensors:
        begin, end = end, end + 2 * int(np.prod(tensor.shape))
        header[tensor.name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    generator = np.random.default_rng(8)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            _write_random(file, int(np.prod(tensor.shape)), generator)
    for name, content in _frontend().items():
        (directory / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return directory


def _write_random(file: BinaryIO, count: int, generator: np.random.Generator) -> None:
    for begin in range(0, count, BLOCK):
        values = generator.standard_normal(min(BLOCK, count - begin), np.float32) * np.float32(0.02)
        file.write((values.view(np.uint32) >> 16).astype("<u2").tobytes())


def _frontend() -> dict[str, Any]:
    """Files of the real size that encode nothing."""
    vocab = {f"token-{index:06d}": index for index in range(TOKENS - 2)}
    added = [{"id": TOKENS - 2, "content": "<|endoftext|>"}, {"id": TOKENS - 1, "content": "<|im_end|>"}]
    merges = [f"token-{index:06d} token-{index + 1:06d}" for index in range(TOKENS - 3)]
    return {
        "config.json": CONFIG,
        "tokenizer.json": {"model": {"type": "BPE", "vocab": vocab, "merges": merges}, "added_tokens": added},
        "tokenizer_config.json": {"eos_token": "<|im_end|>"},
        "chat_template.jinja": "{{ messages }}",
        "generation_config.json": {"eos_token_id": [TOKENS - 1, TOKENS - 2]},
    }


if __name__ == "__main__":
    main()
