"""Stops inside speculative rounds of an answer that begins with a prefill, and how the chat goes on.

    python -m conformance.engine.speculation.stop_chat mtp 15 [--strict-fresh] [--no-cuda-graph]

Arguments: backend and n-gram drafts; five neural drafts.
"""

from __future__ import annotations

import sys

from conformance.engine.speculation.harness import (
    Engine,
    Subject,
    UsageError,
    Verdict,
    drafts,
    finish,
    number,
    subject,
    switches,
)

USAGE = "stop_chat BACKEND NGRAM [--strict-fresh] [--no-cuda-graph]"
NEURAL = 5


def run(argv: list[str]) -> int:
    """The exit status."""
    words, given = switches(argv, {"--strict-fresh": "", "--no-cuda-graph": ""})
    if len(words) != 2:
        raise UsageError(f"two arguments, not {len(words)}")
    settings = drafts(words[0], NEURAL, number(words[1], "NGRAM", 1, 63))
    print(f"graphs {'off' if '--no-cuda-graph' in given else 'on where the device has them'}")
    tested = subject()
    if tested is None:
        print("skipped: no artifact")
        return 0
    verdict = Verdict("--strict-fresh" in given)
    with tested.engine(None) as plain, tested.engine(settings) as engine:
        for index, source in enumerate(tested.sources(plain, begun=first_quarter)):
            stops(verdict, tested, engine, source, index)
    return verdict.status


def first_quarter(source: str) -> str:
    """The first lines of a text."""
    lines = source.split("\n")
    return "\n".join(lines[: max(1, len(lines) // 4)]) + "\n"


def stops(verdict: Verdict, tested: Subject, engine: Engine, source: str, index: int) -> None:
    """For each place: stopped by a string and by a limit, then continued from what was said."""
    prefill = first_quarter(source)
    rest = source[len(prefill) :]
    (whole,) = engine.run(tested.copy(source, prefill))
    verdict.check(f"source {index} prefix", bool(whole.text) and rest.startswith(whole.text.rstrip("\n")))
    verdict.check(f"source {index} copies", whole.copied > 0, f"ngram_accepted_tokens={whole.copied}")
    for share in (0.25, 0.5, 0.75):
        at = int(share * len(whole.text))
        stop = whole.text[at : at + 5]
        name = f"stop {index} {share}"
        (stopped,) = engine.run(tested.copy(source, prefill, stops=(stop,)))
        reason = None if stopped.end is None else stopped.end.reason
        verdict.check(
            f"{name} reason", reason == "stop" and stopped.text == whole.text[: whole.text.index(stop)]
        )
        count = stopped.usage.completion_tokens
        (limited,) = engine.run(tested.copy(source, prefill, tokens=count))
        reason = None if limited.end is None else limited.end.reason
        natural = reason == "stop" and limited.usage.completion_tokens < count
        verdict.check(f"{name} limit", natural or limited.usage.completion_tokens == count, reason)
        verdict.check(f"{name} tokens", limited.tokens[: len(stopped.tokens)] == stopped.tokens)
        follow = tested.copy(source, prefill + stopped.text, tokens=40)
        (first,), (again,) = engine.run(follow), engine.run(follow)
        cached, prompt = again.usage.cached_tokens, again.usage.prompt_tokens
        verdict.check(f"{name} reuse", cached >= first.usage.cached_tokens, f"cached={cached} of {prompt}")
        verdict.fresh(name, first.tokens == again.tokens)
        (third,) = engine.run(follow)
        verdict.check(f"{name} continuation", again.tokens == third.tokens)


if __name__ == "__main__":
    sys.exit(finish(USAGE, run))
