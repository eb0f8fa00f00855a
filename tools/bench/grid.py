"""Cells on a GPU: which ones, what they must reach, one document out of several runs, charts.

    python -m tools.bench.roofline --device cuda                          # the cells that the targets name
    python -m tools.bench.roofline --device cuda --cells full             # five sizes, seven formats: hours
    python -m tools.bench.roofline --device cuda --cells 4B:q4,9B:q4      # a shard of it
    python -m tools.bench.roofline --merge a.json b.json --plot grid.svg  # several runs as one, no GPU needed

Weights are random and made on the device in their packed form. ``tools.gpu_check.cells`` measures; a cell is
``size:format[:kv format]``. Fractions are of the copy rate measured in the same run.
"""

from __future__ import annotations

import gc
import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.bench.bars import Bar, bars_svg

SIZES = ("0.8B", "4B", "9B", "27B", "35B-A3B")
FORMATS = ("bf16", "fp8", "q8", "q6", "q5", "q4", "nvfp4")
CONTEXTS, BATCHES = (0, 8192, 65536), (1, 4, 8)
PROMPT = 8192
Row = dict[str, Any]
Document = dict[str, Any]

# Shares of the copy rate by cell and phase.
SHARES = {
    ("27B:bf16", "decode b1 @8192"): 0.85,
    ("27B:fp8", "decode b1 @8192"): 0.70,
    ("27B:q8", "decode b1 @8192"): 0.70,
    ("27B:q4", "decode b1 @8192"): 0.50,
    ("27B:nvfp4", "decode b1 @8192"): 0.50,
    ("35B-A3B:bf16", "decode b1 @8192"): 0.40,
    ("27B:bf16", "decode b8 @8192"): 0.80,
    ("27B:bf16", "verify 4 @8192"): 0.85,
    ("27B:bf16", "verify 8 @8192"): 0.85,
    ("27B:bf16", "verify 16 @8192"): 0.80,
    ("27B:bf16", "verify 32 @8192"): 0.65,
}
PREFILL_RATES = {"27B:bf16": 9500.0, "35B-A3B:bf16": 30000.0}
PREFILL_SHARE, LONG_CONTEXT, HOST_MS = 0.8, 1.15, 0.5
QUICK = tuple(dict.fromkeys(cell for cell, _ in SHARES))


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target: what was found, what was asked; ``least`` False where less is better."""

    cell: str
    what: str
    found: float
    target: float
    least: bool = True

    @property
    def met(self) -> bool:
        return self.found >= self.target if self.least else self.found <= self.target


def full_grid() -> tuple[str, ...]:
    """Every cell of the grid."""
    return tuple(f"{size}:{name}" for size in SIZES for name in FORMATS)


def measure(cells: Sequence[str], quick: bool) -> Document:
    """Run the cells on the first CUDA device; one that fails is told of and left out."""
    import torch

    from tools.gpu_check.cells import copy_rate, gemm_rate, run_cell

    copy, gemm = copy_rate(), gemm_rate()
    torch.cuda.empty_cache()
    rows: list[Row] = []
    for cell in cells:
        plain = cell == "27B:bf16"
        sizes = Namespace(
            lanes=8,
            chunk=PROMPT,
            batches=BATCHES if not quick else (1, 8) if plain else (1,),
            verify=(4, 8, 16, 32) if plain or not quick else (),
            prefill=PROMPT,
            profile=False,
        )
        contexts = CONTEXTS if plain or not quick else (8192,)
        try:
            rows += run_cell(cell, contexts, copy, sizes)
        except Exception as error:
            print(f"{cell} FAILED {type(error).__name__}: {error}", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    return {
        "device": torch.cuda.get_device_name(),
        "copy_b_s": copy,
        "gemm_flop_s": gemm,
        "cells": [{**row, "copy_b_s": copy} for row in rows],
    }


def merge(documents: Sequence[Document]) -> Document:
    """One document; of a cell and phase that was measured twice the later one counts.

    Errors: ``ValueError`` for runs on different devices.
    """
    devices = {document["device"] for document in documents}
    if len(devices) != 1:
        raise ValueError(f"runs on different devices cannot be one: {', '.join(sorted(devices))}")
    rows: dict[tuple[str, str], Row] = {}
    for document in documents:
        for row in document["cells"]:
            rows.pop((row["cell"], row["phase"]), None)
            rows[row["cell"], row["phase"]] = {"copy_b_s": document["copy_b_s"], **row}
    return {**documents[-1], "cells": list(rows.values())}


def verdicts(document: Document) -> Iterator[Verdict]:
    """Every target whose figures are there."""
    rows = {(row["cell"], row["phase"]): row for row in document["cells"]}
    for (cell, phase), target in SHARES.items():
        if (cell, phase) in rows:
            yield Verdict(cell, f"{phase}, of the copy rate", rows[cell, phase]["fraction"], target)
    prompt = f"prefill {PROMPT}"
    for (cell, phase), row in rows.items():
        size, _, weights = cell.partition(":")
        plain = rows.get((f"{size}:bf16", prompt))
        if phase != prompt:
            continue
        if cell in PREFILL_RATES:
            yield Verdict(cell, f"{phase}, tok/s", row["tok_s"], PREFILL_RATES[cell])
        elif size == "27B" and plain is not None and weights in ("fp8", "q8", "q4", "nvfp4"):
            yield Verdict(cell, f"{phase}, of bf16's", row["tok_s"] / plain["tok_s"], PREFILL_SHARE)
    for (cell, phase), row in rows.items():
        if phase == "decode b1 @8192" and cell in QUICK and "gap_ms" in row:
            yield Verdict(cell, "host between rounds, ms", row["gap_ms"], HOST_MS, least=False)
        if phase.endswith("@65536") and (cell, phase.replace("@65536", "@0")) in rows:
            near = rows[cell, phase.replace("@65536", "@0")]
            explained = row["floor_ms"] - near["floor_ms"]
            if cell in QUICK and explained > 0:
                grown = (row["ms"] - near["ms"]) / explained
                yield Verdict(cell, f"{phase} - @0, of added bytes' time", grown, LONG_CONTEXT, least=False)


def table(document: Document) -> str:
    """Targets first, then every row."""
    lines = [f"{document['device']}, copies {document['copy_b_s'] / 1e12:.2f} TB/s", ""]
    for verdict in verdicts(document):
        sign = ">=" if verdict.least else "<="
        lines.append(
            f"{verdict.cell:14} {verdict.what:44} {verdict.found:10.3f} {sign} {verdict.target:<8g} "
            f"{'met' if verdict.met else 'MISSED'}"
        )
    lines.append("")
    for row in document["cells"]:
        share = f"{row['fraction']:.3f}" if "fraction" in row else ""
        lines.append(
            f"{row['cell']:18} {row['phase']:20} {row['ms']:10.3f} ms {row['tok_s']:10.1f} tok/s {share}"
        )
    return "\n".join(lines)


def chart(document: Document, title: str, cells: Sequence[str] = ()) -> str:
    """Shares of the copy rate as bars: a group per phase, a bar per cell (all of them without ``cells``)."""
    bars = [
        Bar(
            row["phase"],
            row["cell"],
            row["fraction"],
            row["fraction"],
            row["fraction"],
            SHARES.get((row["cell"], row["phase"])),
        )
        for row in document["cells"]
        if "fraction" in row and (not cells or row["cell"] in cells)
    ]
    return bars_svg(title, bars)


def run(arguments: Namespace) -> None:
    """Measure or merge; print, and write what the command line names."""
    if arguments.merge:
        document = merge([json.loads(path.read_text()) for path in arguments.merge])
    else:
        named = arguments.cells
        cells = QUICK if named == "quick" else full_grid() if named == "full" else tuple(named.split(","))
        document = measure(cells, quick=named == "quick")
    print(table(document))
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    if arguments.plot:
        title = f"bytes that must be read over time, of the copy rate ({document['device']}; red: target)"
        write(arguments.plot, document, title)


def write(path: Path, document: Document, title: str) -> None:
    """One chart, or one for each size beside ``path`` where there are several."""
    sizes = list(dict.fromkeys(row["cell"].split(":")[0] for row in document["cells"]))
    if len(sizes) == 1:
        path.write_text(chart(document, title))
        return
    for size in sizes:
        cells = [row["cell"] for row in document["cells"] if row["cell"].split(":")[0] == size]
        path.with_stem(f"{path.stem}-{size}").write_text(chart(document, f"{size}: {title}", cells))
