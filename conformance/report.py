"""What a run says about each clause: held, failed, or not tried and why.

Owns the tally over pytest's reports; knows nothing of what the tests did.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

CLAUSE = "clause"
_OUTCOMES = ("failed", "error", "passed", "skipped")


def clause_lines(stats: Mapping[str, Iterable[Any]], *, full: bool) -> Iterator[str]:
    """A line for each clause (only failed ones unless ``full``), then the counts; nothing without clauses."""
    tally = _tally(stats)
    if not tally:
        return
    states = {clause: _state(counts) for clause, counts in tally.items()}
    yield "clauses"
    for clause, counts in sorted(tally.items()):
        if full or states[clause] == "failed":
            told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in _OUTCOMES if counts[outcome])
            yield f"  {clause:12} {states[clause]:10} {told}"
    total = Counter(states.values())
    yield "  " + ", ".join(f"{total[state]} {state}" for state in ("held", "failed", "not tried"))


def _tally(stats: Mapping[str, Iterable[Any]]) -> dict[str, Counter[str]]:
    tally: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in _OUTCOMES:
        for report in stats.get(outcome, ()):
            for name, clause in getattr(report, "user_properties", ()):
                if name == CLAUSE:
                    tally[clause][outcome] += 1
    return tally


def _state(counts: Counter[str]) -> str:
    if counts["failed"] or counts["error"]:
        return "failed"
    return "held" if counts["passed"] else "not tried"
