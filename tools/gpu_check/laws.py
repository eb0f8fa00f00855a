"""Law 8 on a device: a row does not know its neighbours; nor whether graphs ran it, nor a restart.

    python -m tools.gpu_check.laws [--weights bf16,q4]

Every lane's logits of a round are compared bit by bit between widths 1..16 (the same lanes alone and beside
others, in other orders, on other pages), between a program with graphs and one without, and between two
programs. Exits non-zero on any difference.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
import torch

from ninfer.fast.memory.lanes import Lane
from tools.gpu_check.campaign import SAMPLERS, Case, Stream
from tools.gpu_check.random_model import FORMATS

WIDTHS = range(1, 17)


def prepared(weights: str, seed: int, size: str = "heads", **members: bool) -> tuple[Case, list[Stream]]:
    """Sixteen lanes behind prompts of their own."""
    case = Case(size, weights, "bf16", 16, 64, snapshot_slots=16, **members)
    rng = np.random.default_rng(seed)
    return case, [case.start(rng, SAMPLERS[i % len(SAMPLERS)], longest=300) for i in range(16)]


class Rewind:
    """Puts lanes back to where they stood: images are copied, keys behind the frontier are written again."""

    def __init__(self, case: Case, lanes: list[Lane]) -> None:
        self._case, self._lanes = case, lanes
        self._saved = [case.program.memory.copy_state(lane) for lane in lanes]
        self._frontiers = [(lane.frontier, lane.shift) for lane in lanes]

    def back(self) -> None:
        """As at the start."""
        for lane, slot, (frontier, shift) in zip(self._lanes, self._saved, self._frontiers, strict=True):
            self._case.program.states.copy(slot, lane.slot)
            lane.frontier, lane.shift = frontier, shift


def widths(weights: str, size: str) -> list[str]:
    """Differences between a lane's logits alone and at every width."""
    case, sequences = prepared(weights, 3, size)
    rewind = Rewind(case, [s.lane for s in sequences])
    alone = []
    for s in sequences:
        case.program.round([_row(s)])
        alone.append(case.program.logits(1)[0])
    wrong, rng = [], np.random.default_rng(5)
    for width in WIDTHS:
        rewind.back()
        order = rng.permutation(16)[:width]
        case.program.round([_row(sequences[i]) for i in order])
        together = case.program.logits(width)
        wrong += [
            f"{size} {weights}: lane {i} at width {width}"
            for place, i in enumerate(order)
            if not np.array_equal(together[place], alone[i])
        ]
    return wrong


def _row(s: Stream) -> object:
    from types import SimpleNamespace

    return SimpleNamespace(lane=s.lane, token=s.drawn[0], sampler=s.sampler)


def runs(weights: str, rounds: int = 24) -> list[str]:
    """Differences between three programs: with graphs, without, and with graphs once more."""
    answers = []
    for graphs in (True, False, True):
        case, sequences = prepared(weights, 11, graphs=graphs)
        rng = np.random.default_rng(2)
        for _ in range(rounds):
            case.round([sequences[i] for i in rng.permutation(16)[: int(rng.integers(1, 17))]])
        answers.append([(s.drawn, np.stack(s.logits)) for s in sequences])
        del case
        torch.cuda.empty_cache()
    wrong = []
    for name, other in (("without graphs", answers[1]), ("in a second program", answers[2])):
        for lane, (mine, theirs) in enumerate(zip(answers[0], other, strict=True)):
            if mine[0] != theirs[0] or not np.array_equal(mine[1], theirs[1]):
                wrong.append(f"{weights}: lane {lane} {name}")
    return wrong


def main(argv: Sequence[str] | None = None) -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", default=",".join(FORMATS))
    arguments = parser.parse_args(argv)
    wrong: list[str] = []
    for weights in arguments.weights.split(","):
        # Tiles, and so instructions, depend on how many rows a matrix has: those of small models are not all.
        found = widths(weights, "heads") + widths(weights, "27B-slice")
        found += widths(weights, "heads-moe") if weights in ("bf16", "q4") else []
        print(f"law8 {weights}: widths 1..16 differences={len(found)}", flush=True)
        wrong += found
    for weights in ("bf16", "q4"):
        if weights in arguments.weights.split(","):
            found = runs(weights)
            print(f"runs {weights}: graphs on, off, restart differences={len(found)}", flush=True)
            wrong += found
    for line in wrong[:20]:
        print(line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
