"""Gate 3: with a drafter that is always wrong, ``--adaptive-mtp`` keeps the speed of no drafter.

    python -m tools.bench.draft.wrong [ARTIFACT] [--starts 20] [--answers 2] [--tokens 1500] [--stretch 250]

The same answer is drawn without and with drafts at once: a stretch of rounds of the one, then as many of the
other, so that what slows the machine for longer than a tenth of a second slows both. Both are loaded anew
several times, in either order: where a program lies in memory makes it some percent faster or slower. What
drafting costs after the last round, pairs taken in for the prefix cache, counts too. Prints per answer the
seconds without over those with drafts, then that of all seconds and the median of stretches.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ninfer import bundled
from ninfer.engine.requests import GenerationRequest, SamplingParameters
from ninfer.engine.settings import DraftSettings
from ninfer.fast.draft.ngram.index import Tokens
from ninfer.fast.program.mtp_lanes import Wish
from ninfer.server.served_model import ModelChoices, open_served_model
from tools.bench.draft.runs import MAX_CONTEXT, Runner, runner

_SAMPLED = SamplingParameters(0.7, 0.8, 20, 0.0, 1.5, 0.0, 1)


def spoil(drafting: Runner, vocabulary: int) -> None:
    """Let the head do its work and throw its drafts away for others that are never right.

    A wrong draft is an id that the target cannot draw: the largest embedding row, beyond the tokenizer.
    """
    speculation = drafting.speculation
    assert speculation is not None
    drafter = speculation._drafter
    inner = drafter.draft

    def draft(wishes: Sequence[Wish]) -> list[Tokens]:
        return [np.full_like(drafts, vocabulary - 1) for drafts in inner(wishes)]

    drafter.draft = draft  # type: ignore[method-assign]


def in_turns(off: Runner, on: Runner, request: GenerationRequest, rounds: int) -> list[tuple[float, float]]:
    """Seconds of every stretch of ``rounds`` rounds without and with drafts, begun by either in turn."""
    stretches, ended = [], False
    for one in (off, on):
        one.begin(request)
    while not ended:
        order = (off, on) if len(stretches) % 2 else (on, off)
        found = {id(one): one.advance(rounds) for one in order}
        (plain, first), (drafted, second) = found[id(off)], found[id(on)]
        stretches.append((plain, drafted))
        ended = first and second
    return stretches


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="tools.bench.draft.wrong",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("artifact", nargs="?", type=Path, default=bundled.path())
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--answers", type=int, default=2, help="that count, of each start")
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--stretch", type=int, default=250, help="rounds at a time")
    settings = parser.parse_args()
    model = open_served_model(settings.artifact, ModelChoices(max_context=MAX_CONTEXT))
    tokenizer = model.preparer._tokenizer  # type: ignore[attr-defined]
    adaptive = DraftSettings("mtp", 3, adaptive=True)
    prompt, every = tokenizer.encode("Write a long text."), list[tuple[float, float]]()
    for start in range(settings.starts):
        drafts = (None, adaptive) if start % 2 else (adaptive, None)
        with (
            runner(settings.artifact, tokenizer, drafts[0], None) as first,
            runner(settings.artifact, tokenizer, drafts[1], None) as second,
        ):
            off, on = (second, first) if drafts[0] else (first, second)
            spoil(on, model.config.vocab)
            for number in range(settings.answers + 1):
                request = _request(prompt, settings.tokens, number)
                stretches = in_turns(off, on, request, settings.stretch)
                (tokens, _), (drafted, end) = off.finished, on.finished
                assert tokens == drafted
                draft = end.usage.draft
                assert draft is not None
                assert draft.accepted_tokens == 0
                if number:  # the first one warms up and finds the widths
                    every += stretches
                    plain, with_drafts = map(sum, zip(*stretches, strict=True))
                    print(
                        f"ratio={plain / with_drafts:.3f} off_us={1e6 * plain / settings.tokens:.0f} "
                        f"on_us={1e6 * with_drafts / settings.tokens:.0f} rounds={draft.rounds}",
                        flush=True,
                    )
    plain, with_drafts = map(sum, zip(*every, strict=True))
    # What the machine did to a few stretches does not move their median.
    median = statistics.median(off_s / on_s for off_s, on_s in every)
    print(f"total={plain / with_drafts:.3f} median_stretch={median:.3f} of {len(every)}")


def _request(prompt: list[int], tokens: int, seed: int) -> GenerationRequest:
    return GenerationRequest(
        id=f"wrong-{seed}",
        tokens=np.array(prompt, "<i4").tobytes(),
        positions=b"",
        initial_channel="content",
        sampling=_SAMPLED,
        max_tokens=tokens,
        stop_token_ids=(),
        ignore_stop_tokens=True,
    )


if __name__ == "__main__":
    main()
