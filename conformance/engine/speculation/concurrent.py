"""Several lanes: one alone is what it is elsewhere, two copy exactly for long, two write freely.

    python -m conformance.engine.speculation.concurrent mtp 15 5

Arguments: backend, n-gram drafts (0: off, and the copying part is skipped), lanes; five neural drafts.
``NINFER_NGRAM_TEST_MAX_CONTEXT`` (4096) bounds requests, ``NINFER_NGRAM_TEST_NO_GRAPH`` asks for no graphs.
Lanes need not agree with each other: where they differ, that is printed.
"""

from __future__ import annotations

import os
import sys

from conformance.engine.speculation.harness import (
    Engine,
    Result,
    Subject,
    UsageError,
    Verdict,
    drafts,
    finish,
    number,
    said,
    subject,
    switches,
)
from ninfer.sampling.parameters import SamplingOverrides

USAGE = "concurrent BACKEND NGRAM LANES"
NEURAL, SOAK, FREE = 5, 4, 300


def run(argv: list[str]) -> int:
    """The exit status."""
    words, _ = switches(argv, {})
    if len(words) != 3:
        raise UsageError(f"three arguments, not {len(words)}")
    copies, lanes = number(words[1], "NGRAM", 0, 15), number(words[2], "LANES", 2, 8)
    settings = drafts(words[0], NEURAL, copies)
    context = int(os.environ.get("NINFER_NGRAM_TEST_MAX_CONTEXT", "4096"))
    eager = os.environ.get("NINFER_NGRAM_TEST_NO_GRAPH", "") not in ("", "0")
    print(f"context {context} {'eager' if eager else 'graphs where the device has them'}")
    tested = subject(context)
    if tested is None:
        print("skipped: no artifact")
        return 0
    verdict = Verdict()
    with (
        tested.engine(settings, context=context) as single,
        tested.engine(settings, lanes=lanes, context=context) as wide,
    ):
        free(verdict, tested, wide, copies)
        if copies:
            sources = tested.sources(single)
            alone(verdict, tested, single, wide, sources[0])
            soak(verdict, tested, wide, sources)
        else:
            print("copies are off: the copying part is skipped")
    return verdict.status


def alone(verdict: Verdict, tested: Subject, single: Engine, wide: Engine, source: str) -> None:
    """One request on an engine of many lanes gives the tokens of an engine of one."""
    request = tested.copy(source)
    (wanted,), (found,) = single.run(request), wide.run(request)
    verdict.check("single lane", found.tokens == wanted.tokens, len(found.tokens))


def soak(verdict: Verdict, tested: Subject, wide: Engine, sources: list[str]) -> None:
    """Two copies side by side, again and again, each an exact prefix of its source."""
    for turn in range(SOAK):
        results = wide.run(*(tested.copy(source) for source in sources))
        for lane, (result, source) in enumerate(zip(results, sources, strict=True)):
            exact = bool(result.text) and source.startswith(result.text)
            verdict.check(f"soak {turn} lane {lane}", exact and result.copied > 0, result.copied)


def free(verdict: Verdict, tested: Subject, wide: Engine, copies: int) -> None:
    """Two lanes write freely beside each other and do not fall into a loop."""
    sampling = SamplingOverrides(temperature=1.0, presence_penalty=1.5)
    request = tested.request(
        [said("user", "Tell me a long story.")], tokens=FREE, sampling=sampling, ignore_stop_tokens=True
    )
    results = wide.run(request, request)
    for lane, result in enumerate(results):
        varied = variety(result)
        verdict.check(
            f"free lane {lane}", len(result.tokens) >= 200 and varied > 0.3, f"variety={varied:.2f}"
        )
        if not copies:
            verdict.check(f"free lane {lane} baseline", result.usage.draft.ngram_rounds == 0)
    same = results[0].tokens == results[1].tokens
    print(f"free lanes {'agree' if same else 'differ, which they may'}")


def variety(result: Result) -> float:
    """Share of different runs of four tokens."""
    runs = [tuple(result.tokens[at : at + 4]) for at in range(len(result.tokens) - 3)]
    return len(set(runs)) / max(1, len(runs))


if __name__ == "__main__":
    sys.exit(finish(USAGE, run))
