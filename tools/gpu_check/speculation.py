"""Speculation on a device: verifying is stepping, bit by bit; and what a round of copies costs the host.

    python -m tools.gpu_check.speculation laws [--weights bf16,q4] [--kv bf16,int8] [--default-mode]
    python -m tools.gpu_check.speculation cell [--size 27B] [--weights bf16] [--widths 15,31] [--penalties]
        [--default-mode]

``laws``: lanes of random models run rounds of one token; then again with blocks of 4 to 64 columns whose
drafts are right for a while, greedy and sampled with penalties, alone and beside others. Tokens, images, keys
and values must be equal to those of the single steps, and untouched where nothing is kept; in the default
mode (``--default-mode``; otherwise ``--deterministic``) rounds of more than 16 columns round otherwise, so
there it is said how many tokens were equal before the first other one. ``cell``: see ``copy_rounds``. Exits
non-zero on any difference.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ninfer.engine.settings import DraftSettings
from ninfer.fast.memory.lanes import Lane, pages_for
from ninfer.fast.program.gpu.program import GpuOptions, GpuProgram
from ninfer.fast.program.gpu.shapes import widths_of
from ninfer.fast.program.verify import Block
from ninfer.sampling.parameters import SamplingParameters
from tools.gpu_check import copy_rounds
from tools.gpu_check.random_model import random_head, random_model

GREEDY = SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 0.0, 1)
PENALISED = SamplingParameters(1.0, 0.95, 20, 0.0, 1.5, 0.5, (3 << 32) + 5)
STEPS = 96


@dataclass(slots=True, eq=False)
class Life:
    """One lane and its sampler; ``outputs`` begins with a token that no round drew."""

    lane: Lane
    sampler: Any
    outputs: list[int]


def program_of(
    size: str,
    weights: str,
    kv_format: str,
    lanes: int,
    widths: tuple[int, ...],
    mtp: bool = False,
    context: int = 1024,
    deterministic: bool = True,
) -> GpuProgram:
    """A program with graphs over a random model."""
    device = torch.device("cuda", 0)
    config, model = random_model(size, weights, device)
    head = random_head(config, model, weights, device) if mtp else None
    options = GpuOptions(
        lanes=lanes, max_context=context, pages=lanes * pages_for(context), kv_format=kv_format,
        prefill_chunk=256, vocabulary=config.vocab - 7, widths=widths, deterministic=deterministic, mtp=mtp,
    )  # fmt: skip
    program = GpuProgram(model, config, options, device, head)
    program.warm_up()
    return program


def opened(program: GpuProgram, index: int) -> Life:
    """A lane behind a random prompt; even ones are greedy."""
    random = np.random.default_rng(index)
    length = int(random.integers(20, 250))
    tokens = random.integers(0, program.config.vocab - 7, length).astype(np.int32)
    lane = program.open_lane(1024)
    program.prefill(lane, tokens, np.tile(np.arange(length, dtype=np.int32), (3, 1)))
    sampler = SimpleNamespace(
        parameters=PENALISED if index % 2 else GREEDY, counts=np.zeros(program.config.vocab, np.int32)
    )
    first = int(random.integers(0, 1000))
    sampler.counts[first] += 1
    return Life(lane, sampler, [first])


def committed(program: GpuProgram, lane: Lane) -> list[torch.Tensor]:
    """All of a lane that counts: its state image and its keys and values below the frontier."""
    places = torch.arange(lane.frontier, device=program.device)
    pages = torch.from_numpy(lane.block_table.astype(np.int64)).to(program.device)[places // 64]
    parts = [program.states.images[lane.slot].clone()]
    assert program.pages is not None
    parts += [
        plane[pages, :, places % 64].contiguous()
        for pool in program.pages.layers.values()
        for plane in (pool.keys, pool.key_scales, pool.values, pool.value_scales)
        if plane.numel()
    ]
    return parts


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    """Bit for bit."""
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(one, other, strict=True))


def take(sequence: Life, tokens: Sequence[int]) -> None:
    """Commit outputs."""
    for token in tokens:
        sequence.sampler.counts[token] += 1
    sequence.outputs += tokens


def stepped(program: GpuProgram, lanes: int) -> tuple[list[list[int]], list[list[list[torch.Tensor]]]]:
    """What single steps write, and what is committed after each."""
    sequences = [opened(program, index) for index in range(lanes)]
    states: list[list[list[torch.Tensor]]] = [[] for _ in sequences]
    for _ in range(STEPS):
        rows = [SimpleNamespace(lane=s.lane, token=s.outputs[-1], sampler=s.sampler) for s in sequences]
        for sequence, token, held in zip(sequences, program.round(rows), states, strict=True):
            take(sequence, [token])
            held.append(committed(program, sequence.lane))
    for sequence in sequences:
        program.close_lane(sequence.lane)
    return [s.outputs for s in sequences], states


def law(
    program: GpuProgram, lanes: int, width: int, truth: Any, seed: int, exact: bool = True
) -> tuple[list[str], int, int]:
    """Differences between single steps and blocks of at most ``width`` columns, at most 64 in a round.

    With them the tokens that were equal and those that were written. Not ``exact``: another token ends the
    comparison and is no difference, nor are other bytes.
    """
    wanted, states = truth
    sequences = [opened(program, index) for index in range(lanes)]
    random, wrong, rounds, differs = np.random.default_rng(seed), [], 0, False
    while min(len(s.outputs) for s in sequences) <= STEPS - width and rounds < 40:
        blocks, before = [], [committed(program, s.lane) for s in sequences]
        for index, sequence in enumerate(sequences):
            done = len(sequence.outputs)
            columns = int(random.integers(1, min(width, 64 // lanes, STEPS - done + 1) + 1))
            tokens = np.array([sequence.outputs[-1], *wanted[index][done:]][:columns], np.int32)
            right = int(random.integers(0, columns))
            tokens[1 + right :] = (tokens[1 + right :] + 1) % 1000
            blocks.append(Block(sequence.lane, tokens, sequence.sampler))
        drawn = program.verify(blocks)
        kept = []
        for index, (block, row, old) in enumerate(zip(blocks, drawn, before, strict=True)):
            if len(block.tokens) > 1 and not same(committed(program, block.lane), old):
                wrong.append(f"lane {index}: {len(block.tokens)} verified columns left a trace")
            count = 1
            while count < len(block.tokens) and block.tokens[count] == row[count - 1]:
                count += 1
            kept.append(0 if rounds == 3 and len(block.tokens) > 1 else count)
        program.commit(blocks, kept)
        for index, (sequence, row, count) in enumerate(zip(sequences, drawn, kept, strict=True)):
            take(sequence, row[:count].tolist())
            done = len(sequence.outputs)
            if sequence.outputs != wanted[index][:done]:
                differs = True
                if exact:
                    wrong.append(f"lane {index}: other tokens after a block of {len(blocks[index].tokens)}")
            elif exact and done > 1 and not same(committed(program, sequence.lane), states[index][done - 2]):
                wrong.append(f"lane {index}: other bytes after {count} of {len(blocks[index].tokens)}")
        rounds += 1
        if differs:
            break
    for sequence in sequences:
        program.close_lane(sequence.lane)
    program.check_integrity()
    return wrong, *equal(sequences, wanted)


def equal(sequences: Sequence[Life], wanted: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Tokens before the first one that is not wanted, and tokens written."""
    same_tokens = 0
    for sequence, tokens in zip(sequences, wanted, strict=True):
        pairs = zip(sequence.outputs, tokens, strict=False)
        same_tokens += sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return same_tokens, sum(len(sequence.outputs) for sequence in sequences)


def laws(
    sizes: Sequence[str], weights: Sequence[str], caches: Sequence[str], deterministic: bool = True
) -> list[str]:
    """Every case, printed."""
    wrong: list[str] = []
    for size in sizes:
        for form in weights:
            for kv_format in caches:
                began = time.monotonic()
                program = program_of(size, form, kv_format, 4, (4, 16, 64), deterministic=deterministic)
                for lanes in (1, 4):
                    truth = stepped(program, lanes)
                    for width in (4, 16, 64) if lanes == 1 else (4, 16):
                        found, alike, written = law(program, lanes, width, truth, width, deterministic)
                        print(
                            f"verify {size} {form} kv={kv_format} lanes={lanes} width={width} "
                            f"differences={len(found)} equal_tokens={alike}/{written} "
                            f"{time.monotonic() - began:.1f} s",
                            flush=True,
                        )
                        wrong += [
                            f"{size} {form} {kv_format} lanes={lanes} width={width}: {x}" for x in found
                        ]
                del program, truth
                torch.cuda.empty_cache()
    return wrong


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("laws", "cell"))
    parser.add_argument("--size", default="27B")
    parser.add_argument("--sizes", default="heads,heads-moe")
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--kv", default="bf16")
    parser.add_argument("--widths", default="15,31")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--penalties", action="store_true")
    parser.add_argument("--default-mode", action="store_true")
    arguments = parser.parse_args(argv)
    deterministic = not arguments.default_mode
    if arguments.what == "cell":
        settings = [DraftSettings("mtp", 3, copy_tokens=int(part)) for part in arguments.widths.split(",")]
        widths = tuple(sorted({width for one in settings for width in widths_of(one)}))
        program = program_of(
            arguments.size, arguments.weights, "bf16", 1, widths, mtp=True, context=copy_rounds.CONTEXT,
            deterministic=deterministic,
        )  # fmt: skip
        copy_rounds.cell(program, settings, PENALISED if arguments.penalties else GREEDY, arguments.tokens)
        return
    sizes, formats = arguments.sizes.split(","), arguments.weights.split(",")
    wrong = laws(sizes, formats, arguments.kv.split(","), deterministic)
    for line in wrong[:20]:
        print(line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
