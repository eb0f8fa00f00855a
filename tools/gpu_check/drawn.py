"""Drawn requests on a device: any drafter, width, batch, sampler, stop and budget gives the tokens of none.

    python -m tools.gpu_check.drawn [--seconds 40] [--seed 0] [--kv bf16,int8]

The engine suite's campaign of speculation (``conformance.engine.speculation``) with the bundled model's GPU
program in place of the CPU's, under ``--deterministic``. Prints a line a group and exits non-zero on a
difference.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from conformance.engine.draws import Random
from conformance.engine.speculation.drafters import KnowingDrafter
from conformance.engine.speculation.draws import (
    CONTEXT,
    DrafterDraw,
    draw_drafter,
    draw_requests,
    with_stops_and_sources,
)
from conformance.engine.speculation.drive import Got, serve
from ninfer.artifact import Artifact
from ninfer.bundled import path as bundled_path
from ninfer.fast.program.gpu.mtp_weights import load_mtp_model
from ninfer.fast.program.gpu.parameters import load_text_model
from ninfer.fast.program.gpu.program import GpuOptions, GpuProgram
from ninfer.fast.program.gpu.shapes import widths_of
from ninfer.fast.program.gpu.weights import GpuLoader
from ninfer.fast.program.program import Program
from ninfer.model.config import parse_text_config
from tests.support.nano import VOCABULARY


class Models:
    """The bundled model and its head, loaded once."""

    def __init__(self, path: Path) -> None:
        self.device = torch.device("cuda", 0)
        with Artifact.open(path) as artifact:
            self.config = parse_text_config(artifact.directory.components["text"].config)
            loader = GpuLoader(artifact, self.device)
            self.text = load_text_model(loader, self.config)
            self.head = load_mtp_model(loader, self.config, self.text, proposal_head=False)

    def program(self, draw: DrafterDraw, lanes: int, **sizes: Any) -> GpuProgram:
        """A program for what was drawn."""
        options = GpuOptions(
            lanes=lanes, max_context=CONTEXT, prefill_chunk=64, vocabulary=VOCABULARY, mtp=True,
            widths=widths_of(draw.settings), deterministic=True, **sizes,
        )  # fmt: skip
        program = GpuProgram(self.text, self.config, options, self.device, self.head)
        program.warm_up()
        return program


def run_group(models: Models, random: Random, requests: int, kv_format: str) -> tuple[list[str], str]:
    """The same requests without and with drafts; what differs, and a line."""
    lanes = int(random.integers(1, 9))
    draw = draw_drafter(random, lanes)
    # Room for all: a pause replays tokens as a prompt, whose bits are others.
    pages = lanes * CONTEXT // 64
    graphs = bool(random.random() < 0.7)
    program = cast(
        Program, models.program(draw, lanes, pages=pages, kv_format=kv_format, graphs=graphs)
    )  # fmt: skip
    asked = draw_requests(random, requests)
    plain, _ = serve(program, asked)
    answers = {name: list(got.tokens) for name, got in plain.items()}
    asked = with_stops_and_sources(random, asked, plain, draw.sources)
    plain, _ = serve(program, asked)
    drafter = None if draw.wrong is None else KnowingDrafter(draw.wrong, random, answers)
    drafted, _ = serve(program, asked, draw.settings, drafter)
    wrong = []
    for one in asked:
        found, wanted = drafted[one.request.id], plain[one.request.id]
        common = min(len(found.tokens), len(wanted.tokens))
        if found.tokens[:common] != wanted.tokens[:common] or (
            one.cancel_after is None and found.outcome != wanted.outcome
        ):
            wrong.append(f"{draw} lanes={lanes} kv={kv_format} graphs={graphs}: request {one.request.id}")
    return wrong, f"lanes={lanes} kv={kv_format} graphs={graphs} pages={pages} {said(drafted)} {draw}"


def said(drafted: dict[str, Got]) -> str:
    """What a group's drafts came to."""
    total = sum(one.draft.drafted_tokens for one in drafted.values())
    accepted = sum(one.draft.accepted_tokens for one in drafted.values())
    copied = sum(one.draft.ngram_accepted_tokens for one in drafted.values())
    return f"requests={len(drafted)} drafted={total} accepted={accepted} copied={copied}"


def main(argv: Sequence[str] | None = None) -> None:
    """Groups until the time is over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--kv", default="bf16,int8")
    arguments = parser.parse_args(argv)
    models, random = Models(bundled_path()), np.random.default_rng(arguments.seed)
    formats, began = arguments.kv.split(","), time.monotonic()
    wrong: list[str] = []
    groups = 0
    while time.monotonic() - began < arguments.seconds:
        found, line = run_group(models, random, arguments.requests, formats[groups % len(formats)])
        print(f"{time.monotonic() - began:6.1f} s differences={len(found)} {line}", flush=True)
        wrong += found
        groups += 1
        torch.cuda.empty_cache()
    for one in wrong[:20]:
        print(one)
    print(f"groups={groups} requests={groups * arguments.requests} differences={len(wrong)}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
