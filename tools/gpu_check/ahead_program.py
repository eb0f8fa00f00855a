"""Compiles every kernel that whole programs launch, for each architecture, without a GPU.

    python -m tools.gpu_check.ahead_program [--architectures 80,90] [--weights q4] [--kv bf16]

Models of small hidden size with the heads of the large ones run "dry": launches compile and compute nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import torch

from ninfer.fast.program.gpu.program import GpuOptions, GpuProgram
from ninfer.sampling.parameters import SamplingParameters
from tools.gpu_check.ahead import ARCHITECTURES, Compiled, recording
from tools.gpu_check.random_model import FORMATS, random_head, random_model

KV_FORMATS = ("bf16", "int8", "fp8", "nvfp4", "k8v4")


def dry_run(
    size: str, weights: str, kv_format: str, architectures: Sequence[int], once: bool = False
) -> list[Compiled]:
    """Compile what a prefill, a first token, rounds and a fold of one model launch."""
    device = torch.device("cpu")
    config, model = random_model(size, weights, device)
    options = GpuOptions(
        lanes=2, max_context=256, pages=8, kv_format=kv_format, prefill_chunk=64, vocabulary=config.vocab,
        columns=32, records=True, mtp=True,
    )  # fmt: skip
    head = random_head(config, model, weights, device, proposal=True)
    with recording(architectures, once) as compiled:
        program = GpuProgram(model, config, options, device, head)
        lane = program.open_lane(128)
        tokens = np.zeros(64, np.int32)
        row = program.prefill(lane, tokens, np.tile(np.arange(64, dtype=np.int32), (3, 1)))
        sampler = SimpleNamespace(
            parameters=SamplingParameters(1.0, 0.9, 0, 0.1, 1.0, 1.0, 1),
            counts=np.zeros(config.vocab, np.int32),
        )
        program.first(lane, row, sampler)
        program.round([SimpleNamespace(lane=lane, token=1, sampler=sampler)] * 2)
        program.dry_wide()
        assert program.mtp is not None
        program.mtp.rehearse(2, capture=False)
    return compiled


def main(argv: Sequence[str] | None = None) -> None:
    """Compile and say how long each model took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--architectures", default=",".join(map(str, ARCHITECTURES)))
    parser.add_argument("--weights", default=",".join(FORMATS))
    parser.add_argument("--kv", default=",".join(KV_FORMATS))
    parser.add_argument("--once", action="store_true", help="one variant of each kernel")
    parser.add_argument("--sizes", default="heads,heads-moe")
    arguments = parser.parse_args(argv)
    architectures = [int(part) for part in arguments.architectures.split(",")]
    cases = [("heads", weights, "bf16") for weights in arguments.weights.split(",")]
    cases += [("heads-moe", arguments.weights.split(",")[0], "bf16")]
    cases += [("heads", "bf16", kv) for kv in arguments.kv.split(",") if kv != "bf16"]
    for size, weights, kv_format in (case for case in cases if case[0] in arguments.sizes.split(",")):
        began = time.monotonic()
        compiled = dry_run(size, weights, kv_format, architectures, arguments.once)
        largest = max(kernel.shared for kernel in compiled)
        print(
            f"{size} weights={weights} kv={kv_format} kernels={len(compiled)} largest_shared={largest} "
            f"seconds={time.monotonic() - began:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
