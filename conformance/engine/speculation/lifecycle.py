"""State through the life of requests that copy: retained, cancelled, queued, cut short, at every border.

    python -m conformance.engine.speculation.lifecycle 63 5 1 1 bf16 12 0 mtp [--strict-fresh]

Arguments: n-gram window, neural drafts, graphs 0/1, proposal head 0/1, KV format, least match, extra soak
rounds, backend. Every answer is compared with one of no drafts. The half that restores state from the host
comes with the host tier.
"""

from __future__ import annotations

import sys

import msgspec

from conformance.engine.speculation.harness import (
    Engine,
    Subject,
    UsageError,
    Verdict,
    drafts,
    finish,
    kv_format,
    number,
    said,
    subject,
    switches,
)
from ninfer.artifact import Artifact

USAGE = "lifecycle NGRAM NEURAL GRAPHS HEAD KV MATCH SOAK BACKEND [--strict-fresh]"
CONTEXT = 1024


def run(argv: list[str]) -> int:
    """The exit status."""
    words, given = switches(argv, {"--strict-fresh": ""})
    if len(words) != 8:
        raise UsageError(f"eight arguments, not {len(words)}")
    copies, neural = number(words[0], "NGRAM", 0, 63), number(words[1], "NEURAL", 1, 15)
    graphs, head = number(words[2], "GRAPHS", 0, 1), number(words[3], "HEAD", 0, 1)
    match, soak = number(words[5], "MATCH", 4, 64), number(words[6], "SOAK", 0, 10**6)
    on = ("off", "on")
    print(
        f"NG{copies} K{neural} graphs {on[graphs]} head {on[head]} kv {words[4]} match {match} "
        f"{f'soak {soak}' if soak else 'no soak'} {words[7]}"
    )
    tested = subject(CONTEXT)
    if tested is None:
        print("skipped: no artifact")
        return 0
    if head and not has_proposal(tested):
        print("the artifact has no proposal head: drafting with the full head")
        head = 0
    settings = drafts(words[7], neural, copies, proposal_head=bool(head), copy_match=match)
    verdict, kv = Verdict("--strict-fresh" in given), kv_format(words[4])
    with (
        tested.engine(None, kv=kv, context=CONTEXT) as plain,
        tested.engine(settings, kv=kv, context=CONTEXT) as engine,
    ):
        sources = tested.sources(plain)
        retained(verdict, tested, engine, plain, sources)
        cancellation(verdict, tested, engine, plain, sources)
        isolation(verdict, tested, engine, sources)
        budgets(verdict, tested, engine, plain, sources[0])
        borders(verdict, tested, engine, plain, sources[0])
        for turn in range(soak):
            (result,) = engine.run(tested.copy(sources[turn % len(sources)]))
            verdict.check(f"soak {turn}", result.text == sources[turn % len(sources)])
    print("host-restored state: comes with the host tier")
    return verdict.status


def has_proposal(tested: Subject) -> bool:
    """Whether the artifact holds a proposal head."""
    with Artifact.open(tested.path) as artifact:
        return artifact.directory.components["text"].proposal is not None


def retained(verdict: Verdict, tested: Subject, engine: Engine, plain: Engine, sources: list[str]) -> None:
    """A prompt again and a continued conversation: cached state gives the tokens of cached state."""
    for index, source in enumerate(sources):
        request = tested.copy(source)
        (fresh,), (second,), (third,) = (engine.run(request) for _ in range(3))
        (wanted,) = plain.run(request)
        verdict.check(f"retained {index} copies", fresh.copied > 0, f"ngram_accepted_tokens={fresh.copied}")
        verdict.check(f"retained {index} repeat", second.tokens == third.tokens)
        verdict.check(f"retained {index} undrafted", third.text == wanted.text == source)
        verdict.fresh(f"retained {index}", fresh.tokens == second.tokens)
        follow = tested.request(
            [
                said("user", f"Copy this code exactly\n\n{source}"),
                said("assistant", source),
                said("user", "Again."),
            ],
            tokens=40,
        )
        first, again = engine.run(follow)[0], engine.run(follow)[0]
        verdict.check(f"retained {index} next turn", first.tokens == again.tokens, again.usage.cached_tokens)


def cancellation(
    verdict: Verdict, tested: Subject, engine: Engine, plain: Engine, sources: list[str]
) -> None:
    """A copy that is cancelled inside leaves nothing behind."""
    name = engine.submit(tested.copy(sources[0]))
    while len(engine.results[name].tokens) < 20:
        engine.worker.step()
    engine.worker.cancel(name)
    engine.drain()
    cancelled = engine.results[name]
    reason = None if cancelled.end is None else cancelled.end.reason
    verdict.check("cancellation ends", reason in ("cancelled", "stop"), reason)
    verdict.check("cancellation prefix", sources[0].startswith(cancelled.text))
    (after,), (wanted,) = engine.run(tested.copy(sources[1])), plain.run(tested.copy(sources[1]))
    verdict.check("cancellation next", after.text == wanted.text)


def isolation(verdict: Verdict, tested: Subject, engine: Engine, sources: list[str]) -> None:
    """Requests that wait hold their own sources: they draft as they would alone."""
    requests = [tested.copy(source) for source in sources]
    alone = [engine.run(request)[0] for request in requests]
    together = engine.run(*requests)
    for index, (one, other) in enumerate(zip(alone, together, strict=True)):
        verdict.check(f"isolation {index} tokens", one.tokens == other.tokens)
        verdict.check(f"isolation {index} drafts", one.usage.draft == other.usage.draft, other.copied)


def budgets(verdict: Verdict, tested: Subject, engine: Engine, plain: Engine, source: str) -> None:
    """Output limits that end inside rounds."""
    (whole,) = plain.run(tested.copy(source))
    for limit in (1, 2, 7, 16, 17, 33, len(whole.tokens)):
        (result,) = engine.run(tested.copy(source, tokens=limit))
        count = result.usage.completion_tokens
        verdict.check(f"budget {limit}", count == limit and result.tokens == whole.tokens[:limit], count)


def borders(verdict: Verdict, tested: Subject, engine: Engine, plain: Engine, source: str) -> None:
    """Prompts that end at page borders and one to each side, and answers up to the end of the context."""
    request = tested.copy(source, tokens=70)
    tokens = request.tokens
    for length in (63, 64, 65, 127, 128, 129):
        cut = msgspec.structs.replace(request, tokens=(tokens * 3)[-4 * length :], ignore_stop_tokens=True)
        (found,), (wanted,) = engine.run(cut), plain.run(cut)
        verdict.check(f"page {length}", found.tokens == wanted.tokens, found.usage.completion_tokens)
    for left in (1, 2, 17, 70):
        near = msgspec.structs.replace(
            request,
            tokens=(tokens * 12)[-4 * (CONTEXT - left) :],
            max_tokens=CONTEXT,
            ignore_stop_tokens=True,
        )
        (found,), (wanted,) = engine.run(near), plain.run(near)
        exact = found.usage.prompt_tokens + found.usage.completion_tokens == CONTEXT
        verdict.check(f"context {left}", exact and found.tokens == wanted.tokens, len(found.tokens))


if __name__ == "__main__":
    sys.exit(finish(USAGE, run))
