"""What a campaign counted, and the table it prints.

Owns sums and their limits (``design`` of the equality table: caps on excuses per class of KV format).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

# Excused differences per compared position, across engines and across cut lists.
CODED = ("bf16", "int8", "fp8", "nvfp4", "k8v4")
CAPS = {"float32": 1 / 20_000, **dict.fromkeys(CODED, 1 / 500)}
# A run too short for its cap to mean anything may have this many.
LEAST_CAPS = {"float32": 1, **dict.fromkeys(CODED, 4)}
# Positions whose logits may err by more than the bound, which is 1.5 × the 99th percentile of plain PyTorch's
# errors at least. Errors of one answer hang together: of 100,000 positions with float32 caches 6 were seen in
# one campaign and 35 in another, none of them above 2.2 times the bound.
OUTSIDE = {"float32": 1 / 1_000, **dict.fromkeys(CODED, 1 / 100)}
# With float32 caches nothing is rounded to codes: an error so many times the bound is a fault, however rare.
FAR_OUTSIDE = 6
# The logits rule: errors of the fast engine, at the median and the 99th percentile, against plain PyTorch's.
RATIO = 1.5
# On CPU a float32 error below this share of the logits' root mean square is in order anyway.
RELATIVE = 1e-5


@dataclass(frozen=True, slots=True)
class Excuse:
    """One difference inside the bound: where, and how close the draw was."""

    where: str
    error: float
    bound: float
    margin: float


@dataclass(slots=True)
class Report:
    """Counts of one KV format; ``problems`` are what the equality table does not allow."""

    kv_format: str
    positions: int = 0
    sampled_with_penalties: int = 0
    cut_positions: int = 0
    repeated_positions: int = 0
    prompts: int = 0
    crossing: int = 0
    whole_answers: int = 0
    whole_tokens: int = 0
    rerouted: int = 0
    widths: set[int] = field(default_factory=set)
    excuses: list[Excuse] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    fast_errors: list[npt.NDArray[np.float64]] = field(default_factory=list)
    plain_errors: list[npt.NDArray[np.float64]] = field(default_factory=list)
    bounds: list[npt.NDArray[np.float64]] = field(default_factory=list)

    @property
    def allowed_excuses(self) -> int:
        """The cap for this many positions."""
        share = CAPS[self.kv_format] * (self.positions + self.cut_positions)
        return max(LEAST_CAPS[self.kv_format], int(share))

    def merge(self, other: Report) -> None:
        """Add what another report of the same KV format counted."""
        assert other.kv_format == self.kv_format
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if name == "widths":
                mine |= theirs
            elif name != "kv_format":
                setattr(self, name, mine + theirs)

    def verdict(self) -> list[str]:
        """Every reason to refuse the run; empty when fast and reference are equal by the table."""
        found = list(self.problems)
        if len(self.excuses) > self.allowed_excuses:
            found.append(f"{self.kv_format}: {len(self.excuses)} excuses, {self.allowed_excuses} allowed")
        if self.positions:
            found += self._logits_verdict()
        return found

    def _logits_verdict(self) -> list[str]:
        fast, plain, bounds = (
            np.concatenate(parts) for parts in (self.fast_errors, self.plain_errors, self.bounds)
        )
        found = []
        for percentile in (50, 99):
            mine, its = np.percentile(fast, percentile), np.percentile(plain, percentile)
            floor = np.min(bounds) if self.kv_format == "float32" else 0
            if mine > max(RATIO * its, floor):
                errors = f"{mine:.2e} at percentile {percentile}, plain PyTorch by {its:.2e}"
                found.append(f"{self.kv_format}: logits err by {errors}")
        outside = int(np.count_nonzero(fast > bounds))
        allowed = max(LEAST_CAPS[self.kv_format], int(OUTSIDE[self.kv_format] * len(fast)))
        if outside > allowed:
            found.append(f"{self.kv_format}: {outside} positions outside the logits bound, {allowed} allowed")
        far = int(np.count_nonzero(fast > FAR_OUTSIDE * bounds))
        if far and self.kv_format == "float32":
            found.append(f"float32: {far} positions at over {FAR_OUTSIDE} times the logits bound")
        return found


def table(reports: Iterable[Report]) -> str:
    """One line per KV format."""
    lines = []
    for report in reports:
        fast, plain, bounds = (
            np.concatenate(parts) if parts else np.zeros(1)
            for parts in (report.fast_errors, report.plain_errors, report.bounds)
        )
        worst = int(np.argmax(fast))
        margins = ", ".join(f"{excuse.margin:.1e}" for excuse in report.excuses[:8])
        lines.append(
            f"kv={report.kv_format} positions={report.positions} cut_list_positions={report.cut_positions} "
            f"same_cut_list_positions={report.repeated_positions} "
            f"sampled_with_penalties={report.sampled_with_penalties / max(1, report.positions):.0%} "
            f"prompts_crossing={report.crossing / max(1, report.prompts):.0%} "
            f"mean_output={report.whole_tokens / max(1, report.whole_answers):.0f} "
            f"batch_widths={sorted(report.widths)} rerouted={report.rerouted} "
            f"excuses={len(report.excuses)}/{report.allowed_excuses} margins=[{margins}] "
            f"median_error={np.median(fast):.1e} plain_median={np.median(plain):.1e} "
            f"max_error={fast[worst]:.1e} bound_there={bounds[worst]:.1e} "
            f"worst_share_of_bound={np.max(fast / np.maximum(bounds, 1e-30)):.2f} "
            f"outside_bound={np.count_nonzero(fast > bounds)}"
        )
    return "\n".join(lines)
