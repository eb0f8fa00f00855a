"""The statistics panel: sums over completed requests as a small table.

Owns the sums and the table's text; where it is drawn is the console's matter. Every ratio is a sum over a
sum, so each request weighs by its size.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ninfer.engine.statistics import SchedulerGauges
from ninfer.server.observe.console_lines import rate, seconds
from ninfer.server.observe.records import Done, Outcome, Terminal

LAST = 10
_TITLE, _HEADER, _FIGURES = "1", "2", "36"
# Column widths: 66 without n-gram drafting, 84 with it, 93 with the archive.
_BASE = (7, 7, 7, 12, 11, 6, 8, 8)
_NGRAM = (9, 9)
_ARCHIVE = (9,)


@dataclass(frozen=True, slots=True)
class Sums:
    """What one completed request adds; the sums over several are of the same kind.

    ``decode_share_s``: each round's time split over its requests; ``decode_s``: rounds in full.
    """

    requests: int = 0
    ttft_s: float = 0.0
    with_ttft: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    prefill_s: float = 0.0
    decoded_tokens: int = 0
    decode_share_s: float = 0.0
    decode_s: float = 0.0
    model_rounds: int = 0
    model_drafted: int = 0
    model_accepted: int = 0
    ngram_rounds: int = 0
    ngram_drafted: int = 0
    ngram_accepted: int = 0
    archive_drafted: int = 0
    archive_accepted: int = 0


def sums_of(done: Done) -> Sums:
    """One request's part."""
    usage, work, draft = done.usage, done.work, done.usage.draft
    sums: dict[str, Any] = {
        "requests": 1,
        "ttft_s": done.ttft_s or 0.0,
        "with_ttft": int(done.ttft_s is not None),
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "computed_tokens": work.computed_prefill_tokens,
        "prefill_s": usage.prefill_s,
        "decoded_tokens": max(usage.completion_tokens - 1, 0),
        "decode_share_s": work.decode_share_s,
        "decode_s": work.decode_s,
    }
    if draft is not None:
        sums |= {
            "model_rounds": draft.rounds - draft.ngram_rounds,
            "model_drafted": draft.drafted_tokens - draft.ngram_drafted_tokens,
            "model_accepted": draft.accepted_tokens - draft.ngram_accepted_tokens,
            "ngram_rounds": draft.ngram_rounds,
            "ngram_drafted": draft.ngram_drafted_tokens,
            "ngram_accepted": draft.ngram_accepted_tokens,
        }
    return Sums(**sums)


def total(parts: Iterable[Sums]) -> Sums:
    rows = list(parts)
    return Sums(**{field.name: sum(getattr(row, field.name) for row in rows) for field in fields(Sums)})


class Panel:
    """Counts outcomes and adds up completed requests; safe to use from any thread.

    ``backend`` names the drafter's column, ``ngram`` shows the n-gram columns, ``load`` running and waiting.
    """

    def __init__(self, backend: str | None = None, *, ngram: bool = False, load: bool = True) -> None:
        self._backend = backend
        self._ngram = ngram
        self._load = load
        self._lock = threading.Lock()
        self._outcomes: Counter[Outcome] = Counter()
        self._all = Sums()
        self._last: deque[Sums] = deque(maxlen=LAST)

    def count(self, outcome: Outcome) -> None:
        with self._lock:
            self._outcomes[outcome] += 1

    def add(self, terminal: Terminal) -> None:
        """A request has ended."""
        self.count(terminal.outcome)
        if isinstance(terminal, Done) and terminal.outcome == "completed":
            part = sums_of(terminal)
            with self._lock:
                self._all = total((self._all, part))
                self._last.append(part)

    def rows(self, gauges: SchedulerGauges) -> list[tuple[str, str]]:
        """Lines of text with their colour (an SGR parameter): title, header, one or two rows of figures."""
        with self._lock:
            outcomes, everything, last = Counter(self._outcomes), self._all, list(self._last)
        archive = everything.archive_drafted > 0
        widths = _BASE + (_NGRAM if self._ngram else ()) + (_ARCHIVE if self._ngram and archive else ())
        rows = [
            (_title(outcomes, gauges if self._load else None, sum(widths)), _TITLE),
            (_table_row(self._names(archive), widths), _HEADER),
        ]
        if everything.requests:
            rows.append((_table_row(self._figures("all", everything, archive), widths), _FIGURES))
        if everything.requests > LAST:
            rows.append((_table_row(self._figures("last 10", total(last), archive), widths), _FIGURES))
        return rows

    def _names(self, archive: bool) -> list[str]:
        drafter = [self._backend, "acc/rnd"] if self._backend else ["", ""]
        names = ["", "TTFT", "cached", "prefill", "decode", "batch", *drafter]
        return names + (["ngram", "ng rnds"] if self._ngram else []) + (["archive"] if archive else [])

    def _figures(self, name: str, sums: Sums, archive: bool) -> list[str]:
        cells = [
            name,
            seconds(sums.ttft_s / sums.with_ttft) if sums.with_ttft else "-",
            percent(sums.cached_tokens, sums.prompt_tokens),
            rate(sums.computed_tokens, sums.prefill_s),
            rate(sums.decoded_tokens, sums.decode_share_s),
            quotient(sums.decode_s, sums.decode_share_s),
        ]
        if self._backend:
            cells.append(percent(sums.model_accepted, sums.model_drafted))
            cells.append(quotient(sums.model_accepted, sums.model_rounds))
        else:
            cells += ["", ""]
        if self._ngram:
            cells += [percent(sums.ngram_accepted, sums.ngram_drafted), str(sums.ngram_rounds)]
        if archive:
            cells.append(percent(sums.archive_accepted, sums.archive_drafted))
        return cells


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


def quotient(numerator: float, denominator: float) -> str:
    return f"{numerator / denominator:.2f}" if denominator else "-"


def _title(outcomes: Counter[Outcome], load: SchedulerGauges | None, width: int) -> str:
    """The counts and a rule up to the table's width; large counts get shorter words."""
    long: tuple[Outcome, ...] = ("completed", "failed", "cancelled", "rejected")
    counts: list[tuple[int, str, str]] = [
        (outcomes[name], name, short)
        for name, short in zip(long, ("done", "fail", "cancel", "reject"), strict=True)
    ]
    if load is not None:
        counts += [(load.running, "running", "run"), (load.waiting, "waiting", "wait")]
    for separator, word in ((", ", 1), (" ", 1), (" ", 2)):
        text = separator.join(f"{entry[0]} {entry[word]}" for entry in counts)
        if len(text) <= width:
            break
    return text[:width] if len(text) > width - 2 else f"{text} {'─' * (width - len(text) - 1)}"


def _table_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return first[0].ljust(first[1]) + "".join(cell.rjust(width) for cell, width in rest)
