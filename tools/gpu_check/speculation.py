"""Speculation on a device: verifying is stepping, bit by bit; and what a round of copies costs the host.

    python -m tools.gpu_check.speculation laws [--weights bf16,q4] [--kv bf16,int8]
    python -m tools.gpu_check.speculation cell [--size 27B] [--weights bf16] [--widths 15,31]

``laws``: lanes of random models run rounds of one token; then again with blocks of 4 to 64 columns whose
drafts are right for a while, greedy and sampled with penalties, alone and beside others. Tokens, images, keys
and values must be equal to those of the single steps, and untouched where nothing is kept. ``cell``: copies
of text that the model is about to write, through the whole round (index, proposal, verification, acceptance,
fold): tokens a round, seconds a round and the part of it in which the host does not wait. Exits non-zero on
any difference.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ninfer.engine.requests import GenerationRequest
from ninfer.engine.settings import DraftSettings
from ninfer.fast.draft.speculation import RequestDraft, Speculation
from ninfer.fast.memory.lanes import Lane, pages_for
from ninfer.fast.program.gpu.program import GpuOptions, GpuProgram
from ninfer.fast.program.gpu.shapes import widths_of
from ninfer.fast.program.verify import Block
from ninfer.sampling.parameters import SamplingParameters
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
    size: str, weights: str, kv_format: str, lanes: int, widths: tuple[int, ...], mtp: bool = False
) -> GpuProgram:
    """A program with graphs over a random model."""
    device = torch.device("cuda", 0)
    config, model = random_model(size, weights, device)
    head = random_head(config, model, weights, device) if mtp else None
    options = GpuOptions(
        lanes=lanes, max_context=1024, pages=lanes * pages_for(1024), kv_format=kv_format, prefill_chunk=256,
        vocabulary=config.vocab - 7, widths=widths, deterministic=True, mtp=mtp,
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


def law(program: GpuProgram, lanes: int, width: int, truth: Any, seed: int) -> list[str]:
    """Differences between single steps and blocks of at most ``width`` columns, at most 64 in a round."""
    wanted, states = truth
    sequences = [opened(program, index) for index in range(lanes)]
    random, wrong, rounds = np.random.default_rng(seed), [], 0
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
                wrong.append(f"lane {index}: other tokens after a block of {len(blocks[index].tokens)}")
                return wrong
            if done > 1 and not same(committed(program, sequence.lane), states[index][done - 2]):
                wrong.append(f"lane {index}: other bytes after {count} of {len(blocks[index].tokens)}")
        rounds += 1
    for sequence in sequences:
        program.close_lane(sequence.lane)
    program.check_integrity()
    return wrong


def laws(sizes: Sequence[str], weights: Sequence[str], caches: Sequence[str]) -> list[str]:
    """Every case, printed."""
    wrong: list[str] = []
    for size in sizes:
        for form in weights:
            for kv_format in caches:
                began = time.monotonic()
                program = program_of(size, form, kv_format, 4, (4, 16, 64))
                for lanes in (1, 4):
                    truth = stepped(program, lanes)
                    for width in (4, 16, 64) if lanes == 1 else (4, 16):
                        found = law(program, lanes, width, truth, width)
                        print(
                            f"verify {size} {form} kv={kv_format} lanes={lanes} width={width} "
                            f"differences={len(found)} {time.monotonic() - began:.1f} s",
                            flush=True,
                        )
                        wrong += [
                            f"{size} {form} {kv_format} lanes={lanes} width={width}: {x}" for x in found
                        ]
                del program, truth
                torch.cuda.empty_cache()
    return wrong


# --- what copies cost --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Watch:
    """Seconds that the host spends in some calls of a round, by their names."""

    seconds: dict[str, float] = field(default_factory=dict)

    def over(self, owner: Any, method: str, name: Callable[..., str]) -> None:
        """Watch ``owner.method``; ``name`` says of its arguments what they are counted as."""
        call = getattr(owner, method)

        def watched(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                key = name(*arguments)
                self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - began

        setattr(owner, method, watched)

    def take(self) -> dict[str, float]:
        """What was counted since the last call."""
        taken, self.seconds = self.seconds, {}
        return taken


def watched(program: GpuProgram) -> Watch:
    """Waiting, graphs by what they hold, and uploads; everything else of a round is Python."""
    watch, mtp = Watch(), program.mtp
    assert mtp is not None
    program._waiter = mtp._waiter = SimpleNamespace(wait=program._waiter.wait)  # type: ignore[assignment]
    watch.over(program._waiter, "wait", lambda: "wait")
    watch.over(program._graphs, "run", lambda key, launch: f"graph {key[0]}")
    watch.over(mtp._pairs, "gather", lambda hidden, width: "gather")
    watch.over(program._control, "upload", lambda: "upload")
    program._verifier._folded = _Named(program._verifier._folded)  # type: ignore[assignment]
    mtp._staged = _Named(mtp._staged)  # type: ignore[assignment]
    for staged in (program._verifier._folded, mtp._staged):
        watch.over(staged, "upload", lambda rows: "upload")
        watch.over(staged, "fill", lambda: "fill")
    return watch


class _Named:
    """A staged array whose methods may be replaced."""

    def __init__(self, staged: Any) -> None:
        self.target, self.fill, self.upload = staged.target, staged.fill, staged.upload


class Endless:
    """A turn that takes whatever comes."""

    forced = reason = None
    left = 100_000

    def commit(self, token: int, at: float) -> tuple[()]:
        return ()


@dataclass(slots=True, eq=False)
class Member:
    """A request in rounds."""

    bound: Lane
    sampler: Any
    token: int
    turn: Any
    draft: RequestDraft | None = None
    tokens: list[int] = field(default_factory=list)

    def took(self, tokens: Sequence[int]) -> None:
        """Committed."""
        self.token = tokens[-1]
        self.tokens += tokens


def one_round(program: GpuProgram, speculation: Speculation, member: Member) -> None:
    """As the worker runs it for one request."""
    proposals = speculation.propose([member])
    if proposals is None:
        row = SimpleNamespace(lane=member.bound, token=member.token, sampler=member.sampler)
        (token,) = program.round([row])
        member.took([token])
        speculation.stepped(member, 0, token)
        speculation.ended(1, None, (1,))
    else:
        results = speculation.verify([member], proposals)
        speculation.ended(1, proposals, [result.tokens for result in results])


def cell(size: str, weights: str, copies: Sequence[int], drafts: int = 3) -> None:
    """Rounds of neural drafts, then rounds of copies that all hold, from a context of 256 tokens on."""
    settings = [DraftSettings("mtp", drafts, copy_tokens=copied) for copied in (0, *copies)]
    widths = tuple(sorted({width for one in settings for width in widths_of(one)}))
    program = program_of(size, weights, "bf16", 1, widths, mtp=True)
    assert program.mtp is not None
    watch = watched(program)
    prompt = np.random.default_rng(1).integers(0, 1000, 256).astype(np.int32)
    written: list[int] = []
    for one in settings:
        lane = program.open_lane(1024)
        row = program.prefill(lane, prompt, np.tile(np.arange(256, dtype=np.int32), (3, 1)))
        sampler = SimpleNamespace(parameters=GREEDY, counts=np.zeros(program.config.vocab, np.int32))
        special = np.zeros(program.config.vocab, np.bool_)
        speculation = Speculation(program, one, program.mtp, special)  # type: ignore[arg-type]
        source = np.array(written, "<i4").tobytes()
        request = GenerationRequest(
            id="0", tokens=prompt.astype("<i4").tobytes(), positions=b"", initial_channel="content",
            sampling=GREEDY, max_tokens=700, stop_token_ids=(), copy_sources=(source,) if written else (),
        )  # fmt: skip
        member = Member(lane, sampler, program.first(lane, row, sampler), Endless())
        member.draft = speculation.open(request, 760)
        speculation.begin(member)
        walls, hosts, counts, done = [], [], [], 0
        parts: dict[str, list[float]] = {}
        watch.take()
        while done < 400:
            began, before = time.perf_counter(), len(member.tokens)
            one_round(program, speculation, member)
            wall, count, spent = time.perf_counter() - began, len(member.tokens) - before, watch.take()
            done += count
            if count > 1 + drafts or not one.copy_tokens:
                walls.append(wall)
                hosts.append(wall - spent.pop("wait"))
                counts.append(count)
                spent["python"] = hosts[-1] - sum(spent.values())
                for name, seconds in spent.items():
                    parts.setdefault(name, []).append(seconds)
        written = written or member.tokens
        print(
            f"{size} {weights} drafts={drafts} copies={one.copy_tokens} rounds={len(walls)}"
            + f" tokens={np.mean(counts):.2f} ms={1e3 * statistics.median(walls):.3f}"
            f" host_ms={1e3 * statistics.median(hosts):.3f}"
            f" host_p90_ms={1e3 * float(np.quantile(hosts, 0.9)):.3f}"
            if walls
            else f"{size} {weights} copies={one.copy_tokens}: no copy held",
            flush=True,
        )
        print("   " + " ".join(f"{k}={1e3 * statistics.median(v):.3f}" for k, v in parts.items()), flush=True)
        speculation.end(lane)
        program.close_lane(lane)


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
    arguments = parser.parse_args(argv)
    if arguments.what == "cell":
        cell(arguments.size, arguments.weights, [int(part) for part in arguments.widths.split(",")])
        return
    wrong = laws(arguments.sizes.split(","), arguments.weights.split(","), arguments.kv.split(","))
    for line in wrong[:20]:
        print(line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
