"""Checkpoints small enough to travel: bf16 weights, 16-bit moments, in shards of at most 16 MiB.

A checkpoint is one safetensors file cut into ``checkpoint.NN`` pieces; what is not a tensor (counts, seed,
recipe) stands in its metadata.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from tools.tiny.optimiser import Optimiser

SHARD_BYTES = 15 * 2**20 + 2**19
LIMIT_BYTES = 48 * 2**20
_HEADER_BYTES = 8


def write(
    directory: Path, parameters: dict[str, Tensor], optimiser: Optimiser | None, state: dict[str, Any]
) -> None:
    """Write the shards of one checkpoint; ``optimiser`` None writes weights alone (the finished model)."""
    tensors = {f"weight/{name}": p.detach().bfloat16().cpu() for name, p in parameters.items()}
    if optimiser is not None:
        for kind, table in (("first", optimiser.first), ("second", optimiser.second)):
            tensors |= {f"{kind}/{name}": moment.bfloat16().cpu() for name, moment in table.items()}
    payload = save(tensors, {"state": json.dumps(state)})
    if len(payload) > LIMIT_BYTES:
        raise ValueError(f"checkpoint of {len(payload)} bytes; at most {LIMIT_BYTES} can travel")
    directory.mkdir(parents=True, exist_ok=True)
    shards = [payload[begin : begin + SHARD_BYTES] for begin in range(0, len(payload), SHARD_BYTES)]
    for index, shard in enumerate(shards):
        (directory / f"part.{index:02d}").write_bytes(shard)
    # All are on disk before the first takes its name: a run that is cut off here loses nothing.
    for index in range(len(shards)):
        (directory / f"part.{index:02d}").replace(directory / f"checkpoint.{index:02d}")


def read(directory: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by ``kind/name`` and the state; errors: FileNotFoundError where there is no checkpoint."""
    shards = sorted(directory.glob("checkpoint.[0-9][0-9]"))
    if not shards:
        raise FileNotFoundError(f"no checkpoint.NN in {directory}")
    payload = b"".join(shard.read_bytes() for shard in shards)
    length = int.from_bytes(payload[:_HEADER_BYTES], "little")
    header = json.loads(payload[_HEADER_BYTES : _HEADER_BYTES + length])
    return load(payload), json.loads(header["__metadata__"]["state"])


def restore(
    tensors: dict[str, Tensor], parameters: dict[str, Tensor], optimiser: Optimiser | None = None
) -> None:
    """Copy a checkpoint's tensors into parameters and moments of the same names."""
    tables = {"weight": parameters}
    if optimiser is not None:
        tables |= {"first": optimiser.first, "second": optimiser.second}
    with torch.no_grad():
        for kind, table in tables.items():
            for name, target in table.items():
                target.copy_(tensors[f"{kind}/{name}"])
