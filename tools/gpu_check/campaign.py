"""Whole random models against the reference: prefill and decode, every weight and KV format, on a device.

    python -m tools.gpu_check.campaign [--rounds 830] [--seed 0] [--case "heads q4"]

Lanes decode together with their own samplers; every position is compared, teacher-forced along the engine's
own tokens. A case passes where the logits' error is at most 1.5 times that of plain PyTorch in bf16 (median
and 99th percentile, both against float64), every token is what the sampling rules draw from the engine's own
logits, and tokens other than the reference's are no more than 1.25 times what plain PyTorch shows on the same
positions. Prints a table and exits non-zero on any failure.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ninfer.errors import EngineError, RequestError
from ninfer.fast.memory.lanes import pages_for
from ninfer.fast.program.gpu.parameters import load_text_model
from ninfer.fast.program.gpu.program import GpuOptions, GpuProgram
from ninfer.sampling.draw import select_token
from ninfer.sampling.parameters import SamplingParameters
from tools.gpu_check.oracle import Oracle, RecordedSource
from tools.gpu_check.random_model import FORMATS, RandomSource, config_of

KV_FORMATS = ("bf16", "int8", "fp8", "nvfp4", "k8v4")
SAMPLERS = (
    SamplingParameters(0.0, 1.0, 0, 0.0, 0.0, 0.0, 1),
    SamplingParameters(1.0, 0.95, 20, 0.0, 1.5, 0.5, (3 << 32) + 5),
    SamplingParameters(0.0, 1.0, 0, 0.0, 1.2, 0.3, 2),
    SamplingParameters(1.5, 1.0, 0, 0.1, 0.0, 0.0, (9 << 40) + 7),
    SamplingParameters(0.8, 0.9, 3, 0.0, 2.0, 0.0, (1 << 63) + 11),
)


@dataclass(slots=True, eq=False)
class Stream:
    """One lane's life: prompt, drawn tokens and the logits behind them."""

    lane: Any
    prompt: list[int]
    sampler: Any
    drawn: list[int]
    logits: list[np.ndarray]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case: positions, errors (median, p99) of the engine and of plain PyTorch, tokens that differ."""

    name: str
    positions: int
    median: float
    p99: float
    plain_median: float
    plain_p99: float
    differ: int
    plain_differ: int
    stored: float
    own_differ: int

    @property
    def passes(self) -> bool:
        """The rule of the case."""
        errors = self.median <= 1.5 * self.plain_median and self.p99 <= 1.5 * self.plain_p99
        return errors and self.differ <= max(1.25 * self.plain_differ, 1) and self.own_differ == 0

    def line(self) -> str:
        """One row of the table."""
        return (
            f"{self.name:24} positions={self.positions:6} err={self.median:.2e}/{self.p99:.2e} "
            f"plain={self.plain_median:.2e}/{self.plain_p99:.2e} tokens={self.differ}/{self.plain_differ} "
            f"stored={self.stored:.1e} own={self.own_differ} {'ok' if self.passes else 'FAIL'}"
        )


class Case:
    """A program over a random model with its oracles."""

    def __init__(
        self, size: str, weights: str, kv_format: str, lanes: int, rounds: int, **members: Any
    ) -> None:
        self.device = torch.device("cuda", 0)
        self.config = config_of(size)
        self.name = f"{size} {weights} kv={kv_format}"
        source = RecordedSource(RandomSource(self.config, weights, self.device))
        model = load_text_model(source, self.config)
        longest = 768 + rounds
        options = GpuOptions(
            lanes=lanes, max_context=longest, pages=lanes * pages_for(longest),
            kv_format=kv_format,
            prefill_chunk=256, vocabulary=self.config.vocab - 7, records=True, **members,
        )  # fmt: skip
        self.program = GpuProgram(model, self.config, options, self.device)
        self.program.warm_up()
        self.exact = Oracle(self.config, source.values, torch.float64)
        self.plain = Oracle(self.config, source.values, torch.bfloat16)

    def start(self, rng: np.random.Generator, sampler: SamplingParameters, longest: int = 700) -> Stream:
        """Open a lane, prefill a random prompt, draw the first token."""
        program, length = self.program, int(rng.integers(1, longest))
        lane = program.open_lane(program.options.max_context)
        prompt = rng.integers(0, self.config.vocab, length).astype(np.int32)
        row = None
        for begin in range(0, length, 256):
            end = min(length, begin + 256)
            axes = np.tile(np.arange(begin, end, dtype=np.int32), (3, 1))
            row = program.prefill(lane, prompt[begin:end], axes)
        drawer = SimpleNamespace(parameters=sampler, counts=np.zeros(self.config.vocab, np.int32))
        first = program.first(lane, row, drawer)
        drawer.counts[max(first, 0)] += 1
        return Stream(lane, prompt.tolist(), drawer, [first], [program.logits(1)[0]])

    def round(self, sequences: Sequence[Stream]) -> None:
        """One round of these sequences."""
        rows = [SimpleNamespace(lane=s.lane, token=s.drawn[-1], sampler=s.sampler) for s in sequences]
        drawn = self.program.round(rows)
        logits = self.program.logits(len(rows))
        for sequence, token, row in zip(sequences, drawn, logits, strict=True):
            sequence.sampler.counts[max(token, 0)] += 1
            sequence.drawn.append(token)
            sequence.logits.append(row)

    def judge(self, sequences: Sequence[Stream]) -> Outcome:
        """Compare every position of the sequences."""
        errors, plain_errors, differ, plain_differ, stored, own = [], [], 0, 0, 0.0, 0
        for s in sequences:
            tokens = s.prompt + s.drawn[:-1]
            first = len(s.prompt) - 1
            exact = self.exact.forced(self.program, s.lane, tokens, first)
            plain = self.plain.forced(self.program, s.lane, tokens, first)
            stored = max(stored, exact.stored)
            mine = torch.from_numpy(np.stack(s.logits)).to(self.device).double()
            norm = exact.logits.norm(dim=1)
            errors.append(((mine - exact.logits).norm(dim=1) / norm).cpu())
            plain_errors.append(((plain.logits - exact.logits).norm(dim=1) / norm).cpu())
            differ += self._differ(s, exact.logits.float().cpu().numpy(), s.drawn)
            theirs = self._draws(s, plain.logits.float().cpu().numpy())
            own += self._differ(s, np.stack(s.logits), s.drawn)
            plain_differ += self._differ(s, exact.logits.float().cpu().numpy(), theirs)
        error, plain_error = torch.cat(errors), torch.cat(plain_errors)
        return Outcome(
            self.name, len(error), float(error.nan_to_num(9).median()),
            float(error.nan_to_num(9).quantile(0.99)),
            float(plain_error.median()), float(plain_error.quantile(0.99)), differ, plain_differ, stored,
            own,
        )  # fmt: skip

    def _draws(self, s: Stream, logits: np.ndarray) -> list[int]:
        """What the sampler draws from these logits, along the engine's own tokens."""
        counts, drawn = np.zeros(self.config.vocab, np.int32), []
        for place, row in enumerate(logits):
            try:
                token = select_token(
                    row, s.sampler.parameters, counts, len(s.prompt) + place, vocabulary=self.config.vocab - 7
                )
            except (EngineError, RequestError):
                token = -9
            drawn.append(token)
            counts[max(s.drawn[place], 0)] += 1
        return drawn

    def _differ(self, s: Stream, logits: np.ndarray, drawn: list[int]) -> int:
        return sum(a != b for a, b in zip(self._draws(s, logits), drawn, strict=True))

    def close(self, sequences: Sequence[Stream]) -> None:
        """Give the lanes back."""
        for s in sequences:
            self.program.close_lane(s.lane)
        self.program.check_integrity()


def run_case(size: str, weights: str, kv_format: str, rounds: int, seed: int, lanes: int = 8) -> Outcome:
    """Serve lanes that come and go, then judge."""
    case = Case(size, weights, kv_format, lanes, rounds)
    rng = np.random.default_rng(seed)
    sequences = [case.start(rng, SAMPLERS[i % len(SAMPLERS)]) for i in range(lanes)]
    for _ in range(rounds):
        count = int(rng.integers(1, lanes + 1))
        chosen = rng.permutation(lanes)[:count]
        case.round([sequences[i] for i in chosen])
    outcome = case.judge(sequences)
    case.close(sequences)
    return outcome


def cases() -> list[tuple[str, str, str]]:
    """Dense in every weight format and every KV format, mixtures in the formats they are published in."""
    dense = [("heads", weights, "bf16") for weights in FORMATS]
    caches = [("heads", "bf16", kv) for kv in KV_FORMATS if kv != "bf16"]
    mixtures = [
        ("heads-moe", weights, kv) for weights, kv in (("bf16", "bf16"), ("q4", "int8"), ("nvfp4", "fp8"))
    ]
    return dense + caches + mixtures


def checked(run: Callable[[], Outcome], name: str) -> bool:
    """Run and print one case; whether it passed."""
    began = time.monotonic()
    try:
        outcome = run()
    except Exception as error:
        print(f"{name:24} FAIL {type(error).__name__}: {error}", flush=True)
        return False
    print(f"{outcome.line()} {time.monotonic() - began:.1f} s", flush=True)
    return outcome.passes


def main(argv: Sequence[str] | None = None) -> None:
    """Run every case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=830)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", action="append", help="only cases whose name contains this")
    arguments = parser.parse_args(argv)
    chosen = [c for c in cases() if not arguments.case or any(part in " ".join(c) for part in arguments.case)]
    good = [
        checked(lambda c=case: run_case(*c, arguments.rounds, arguments.seed), " ".join(case))
        for case in chosen
    ]
    print(f"cases={len(good)} failed={good.count(False)}")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
