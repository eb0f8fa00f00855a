"""How near the fast engine comes to the machine: each phase as a fraction of its own floor.

    python -m tools.bench.roofline                           # random 0.8B, bf16, q8 and q4: 5 GB of disk
    python -m tools.bench.roofline --artifact m.ninfer       # a model of your own, again and again
    python -m tools.bench.roofline --contexts 0 --prompts 64 --tokens 4 --repetitions 1    # a quick look
    python -m tools.bench.roofline --device cuda [--cells 27B:bf16,27B:q4 | full]   # on a GPU: see grid.py

Loads every artifact, then alternates: ceiling, a phase, ceiling, the next phase … through all models,
``--repetitions`` times. A decode phase is compared with the read bandwidth and a prefill phase with the GEMM
peak measured just before and after it; medians over the repetitions. Writes a table to stdout, everything to
``--json`` and a chart to ``--plot``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from ninfer.engine.settings import EngineSettings
from tools.bench import grid, scratch
from tools.bench.bars import Bar, bars_svg
from tools.bench.ceilings import Ceilings
from tools.bench.phases import Phases, passive_threads, settings_for

# Share of the read ceiling by recipe, of the GEMM peak by activation type (issue "the fast engine on CPU").
DECODE_TARGETS = {"bf16": 0.52, "q8": 0.45, "q4": 0.40}
PREFILL_TARGETS = {"float32": 0.75, "bf16": 0.55}
RECIPES = ("bf16", "q8", "q4")


@dataclass(slots=True)
class Measured:
    """One phase of one model: tokens per second and fractions of the floor, a value per repetition."""

    model: str
    phase: str
    floor: str
    target: float | None
    rates: list[float] = field(default_factory=list)
    floor_rates: list[float] = field(default_factory=list)

    @property
    def fractions(self) -> list[float]:
        return [rate / floor for rate, floor in zip(self.rates, self.floor_rates, strict=True)]

    def note(self, rate: float, floor_rate: float) -> None:
        """Add one repetition."""
        self.rates.append(rate)
        self.floor_rates.append(floor_rate)


@dataclass(frozen=True, slots=True)
class Step:
    """One phase to run: its seconds, its tokens, and what it costs in units of its ceiling."""

    measured: Measured
    run: Callable[[], float]
    tokens: int
    cost: float
    ceiling: Callable[[], float]

    def take(self) -> None:
        """Ceiling, phase, ceiling."""
        before = self.ceiling()
        seconds = self.run()
        ceiling = (before + self.ceiling()) / 2
        self.measured.note(self.tokens / seconds, self.tokens * ceiling / self.cost)


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of the phases, and the activation type that prefill's peak belongs to."""

    contexts: tuple[int, ...]
    prompts: tuple[int, ...]
    tokens: int
    activations: str


def steps(model: str, phases: Phases, plan: Plan, ceilings: Ceilings) -> Iterator[Step]:
    """A model's phases in order."""
    for context in plan.contexts:
        measured = Measured(model, f"decode @{context}", "read", DECODE_TARGETS.get(model))
        cost = phases.floors.decode_bytes(context, plan.tokens)
        yield Step(measured, _decode(phases, context, plan.tokens), plan.tokens, cost, ceilings.read)
    kind = torch.float32 if plan.activations == "float32" else torch.bfloat16
    for prompt in plan.prompts:
        target = PREFILL_TARGETS[plan.activations]
        measured = Measured(model, f"prefill {prompt}", f"{plan.activations} GEMM", target)
        cost = phases.floors.prefill_flops(prompt)
        yield Step(measured, _prefill(phases, prompt), prompt, cost, lambda: ceilings.gemm(kind))


def _decode(phases: Phases, context: int, tokens: int) -> Callable[[], float]:
    return lambda: phases.decode(context, tokens)


def _prefill(phases: Phases, tokens: int) -> Callable[[], float]:
    return lambda: phases.prefill(tokens)


def measure(
    artifacts: Sequence[Path], plan: Plan, ceilings: Ceilings, repetitions: int, **members: object
) -> list[Measured]:
    """Every phase of every artifact, alternated ``repetitions`` times; ``members`` are engine settings."""
    with ExitStack() as stack:
        planned: list[Step] = []
        for path in artifacts:
            settings: EngineSettings = settings_for(path, plan.contexts, plan.prompts, **members)
            print(f"loading {path}", file=sys.stderr, flush=True)
            phases = Phases(path, plan.contexts, settings)
            stack.callback(phases.close)
            planned += steps(path.stem, phases, plan, ceilings)
        for step in planned:
            step.run()  # caches and pages are warm
        for repetition in range(repetitions):
            print(f"repetition {repetition + 1} of {repetitions}", file=sys.stderr, flush=True)
            for step in planned:
                step.take()
    return [step.measured for step in planned]


def table(results: Sequence[Measured]) -> str:
    """Medians, the spread of the fraction, and whether the target is met."""
    lines = [
        f"{'model':<10} {'phase':<14} {'tok/s':>9} {'floor tok/s':>12} {'of floor':>9} {'min..max':>12} "
        f"{'target':>7} {'met':>4}  floor"
    ]
    for row in results:
        share = statistics.median(row.fractions)
        met = "" if row.target is None else "yes" if share >= row.target else "no"
        target = "" if row.target is None else f"{row.target:.2f}"
        lines.append(
            f"{row.model:<10} {row.phase:<14} {statistics.median(row.rates):9.1f} "
            f"{statistics.median(row.floor_rates):12.1f} {share:9.3f} "
            f"{min(row.fractions):5.2f}..{max(row.fractions):4.2f} {target:>7} {met:>4}  {row.floor}"
        )
    return "\n".join(lines)


def chart(results: Sequence[Measured]) -> str:
    """The fractions as bars, each with its range over the repetitions."""
    return bars_svg(
        "fraction of each phase's floor (red: target)",
        [
            Bar(
                row.phase,
                row.model,
                statistics.median(row.fractions),
                min(row.fractions),
                max(row.fractions),
                row.target,
            )
            for row in results
        ],
    )


def document(results: Sequence[Measured], summary: dict[str, float], threads: int) -> str:
    """Everything as JSON."""
    rows = [{**asdict(row), "fractions": row.fractions} for row in results]
    members = {"artifact_type": "ninfer_roofline", "threads": threads, "ceilings": summary, "phases": rows}
    return json.dumps(members, indent=1) + "\n"


def summarise(ceilings: Ceilings) -> dict[str, float]:
    """The three ceilings once more, for the record."""
    return {
        "read_gb_s": ceilings.read() / 1e9,
        "float32_gemm_gflop_s": ceilings.gemm(torch.float32) / 1e9,
        "bf16_gemm_gflop_s": ceilings.gemm(torch.bfloat16) / 1e9,
    }


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--artifact", type=Path, action="append", help="ready-made; may be repeated")
    parser.add_argument("--directory", help="where random models are made (default: the system's)")
    parser.add_argument("--contexts", type=_integers, default=(0, 512, 4096))
    parser.add_argument("--prompts", type=_integers, default=(512, 2048))
    parser.add_argument("--tokens", type=int, default=32, help="decoded per phase")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kv-dtype", default="bf16")
    parser.add_argument("--prefill-chunk", type=int, default=1024)
    parser.add_argument("--cpu-activations", choices=sorted(PREFILL_TARGETS), default="float32")
    parser.add_argument("--read-mib", type=int, default=1024, help="memory that the read ceiling streams")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cells", default="quick", help="on a GPU: quick, full, or size:format,…")
    parser.add_argument("--merge", type=Path, nargs="+", help="JSON of runs on a GPU, to be one")
    parser.add_argument("--json", type=Path, help="write everything there")
    parser.add_argument("--plot", type=Path, help="write a chart there (SVG)")
    return parser.parse_args(argv)


def engine_members(arguments: argparse.Namespace) -> dict[str, object]:
    """Engine settings that the command line chooses."""
    return {
        "threads": arguments.threads,
        "kv_format": arguments.kv_dtype,
        "prefill_chunk": arguments.prefill_chunk,
        "activations": arguments.cpu_activations,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write."""
    arguments = arguments_of(argv)
    if arguments.device == "cuda" or arguments.merge:
        grid.run(arguments)
        return
    plan = Plan(arguments.contexts, arguments.prompts, arguments.tokens, arguments.cpu_activations)
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        artifacts = arguments.artifact or [scratch.artifact(Path(folder), recipe) for recipe in RECIPES]
        ceilings = Ceilings(arguments.threads, arguments.read_mib << 20)
        results = measure(artifacts, plan, ceilings, arguments.repetitions, **engine_members(arguments))
    summary = summarise(ceilings)
    ceilings.close()
    print(" ".join(f"{name}={value:.1f}" for name, value in summary.items()), f"threads={arguments.threads}")
    print(table(results))
    if arguments.json:
        arguments.json.write_text(document(results, summary, arguments.threads))
    if arguments.plot:
        arguments.plot.write_text(chart(results))


if __name__ == "__main__":
    passive_threads("tools.bench.roofline")
    main()
