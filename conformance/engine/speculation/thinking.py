"""Budgets of output and thinking while copies are drafted.

    python -m conformance.engine.speculation.thinking mtp 5 15 [--strict-fresh]

Arguments: backend, neural drafts, n-gram drafts.
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
    said,
    subject,
    switches,
)

USAGE = "thinking BACKEND NEURAL NGRAM [--strict-fresh]"


def run(argv: list[str]) -> int:
    """The exit status."""
    words, given = switches(argv, {"--strict-fresh": ""})
    if len(words) != 3:
        raise UsageError(f"three arguments, not {len(words)}")
    neural, copies = number(words[1], "NEURAL", 1, 15), number(words[2], "NGRAM", 1, 63)
    settings = drafts(words[0], neural, copies)
    tested = subject()
    if tested is None:
        print("skipped: no artifact")
        return 0
    verdict = Verdict("--strict-fresh" in given)
    with tested.engine(None) as plain, tested.engine(settings) as engine:
        for index, source in enumerate(tested.sources(plain)):
            budget(verdict, tested, engine, plain, source, index)
            answer(verdict, tested, engine, source, index)
    return verdict.status


def budget(verdict: Verdict, tested: Subject, engine: Engine, plain: Engine, source: str, index: int) -> None:
    """Thinking ends at its budget, by control tokens that stand once; the whole stays within its limit."""
    messages = [said("user", f"Copy this code exactly\n\n{source}")]
    for cap in (1, 8, 32):
        request = tested.request(messages, thinking=True, tokens=300, thinking_budget=cap)
        assert request.thinking_budget is not None
        closing = list(request.thinking_budget.closing)
        (found,), (wanted,) = engine.run(request), plain.run(request)
        places = [at for at in range(len(found.tokens)) if found.tokens[at : at + len(closing)] == closing]
        thought = places[0] if places else found.usage.reasoning_tokens
        name = f"budget {index} {cap}"
        verdict.check(f"{name} tokens", found.tokens == wanted.tokens)
        verdict.check(f"{name} thinking", thought <= cap, f"thought={thought}")
        verdict.check(f"{name} transition", len(places) <= 1, f"closings={len(places)}")
        verdict.check(f"{name} completion", found.usage.completion_tokens <= 300)
    (short,) = engine.run(tested.request(messages, thinking=True, tokens=24))
    verdict.check(f"output {index}", short.usage.completion_tokens == 24, short.usage.completion_tokens)


def answer(verdict: Verdict, tested: Subject, engine: Engine, source: str, index: int) -> None:
    """A copy is a prefix of its source and was drafted from it; cached repeats are the same."""
    request = tested.copy(source, tokens=200)
    (fresh,), (second,), (third,) = (engine.run(request) for _ in range(3))
    verdict.check(f"answer {index} prefix", bool(fresh.text) and source.startswith(fresh.text))
    verdict.check(f"answer {index} copies", fresh.copied > 0, f"ngram_accepted_tokens={fresh.copied}")
    verdict.check(f"answer {index} repeat", second.tokens == third.tokens)
    verdict.fresh(f"answer {index}", fresh.tokens == second.tokens)


if __name__ == "__main__":
    sys.exit(finish(USAGE, run))
