"""Host time between rounds: what the worker spends from a round's end to the next one's launch.

Owns the account only. Whoever starts the server with ``--log-level debug`` sees a line per thousand rounds.
"""

from __future__ import annotations

from collections.abc import Callable

ROUNDS = 1000


class RoundGaps:
    """``report`` hears one line for every ROUNDS gaps between rounds that follow each other directly."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._gaps: list[float] = []
        self._ended: float | None = None

    def note(self, launched: float, ended: float) -> None:
        """A round ran between two moments, in seconds of one clock."""
        if self._ended is not None:
            self._gaps.append(launched - self._ended)
        self._ended = ended
        if len(self._gaps) == ROUNDS:
            gaps = sorted(self._gaps)
            p50, p95, longest = (1e6 * gaps[place] for place in (ROUNDS // 2, ROUNDS * 95 // 100, -1))
            self._report(f"round_gap_us p50={p50:.0f} p95={p95:.0f} max={longest:.0f} rounds={ROUNDS}")
            self._gaps.clear()

    def pause(self) -> None:
        """Something else comes between the last round and the next one."""
        self._ended = None
