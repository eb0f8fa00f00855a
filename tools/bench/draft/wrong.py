"""Gate 3: with a drafter that is always wrong, ``--adaptive-mtp`` keeps the speed of no drafter.

    python -m tools.bench.draft.wrong [ARTIFACT] [--pairs 9] [--tokens 1500]

Answers without and with drafts in turn; prints the ratio of their decode rates, its median and every pair.
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools.bench.draft.wrong", description=__doc__)
    parser.add_argument("artifact", nargs="?", type=Path, default=bundled.path())
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=1500)
    settings = parser.parse_args()
    model = open_served_model(settings.artifact, ModelChoices(max_context=MAX_CONTEXT))
    tokenizer = model.preparer._tokenizer  # type: ignore[attr-defined]
    adaptive = DraftSettings("mtp", 3, adaptive=True)
    with (
        runner(settings.artifact, tokenizer, None, None) as off,
        runner(settings.artifact, tokenizer, adaptive, None) as on,
    ):
        spoil(on, model.config.vocab)
        ratios = []
        for pair in range(settings.pairs + 1):
            request = _request(tokenizer.encode("Write a long text."), settings.tokens, pair)
            first, second = (off, on) if pair % 2 else (on, off)
            answers = {id(one): one.answer(request, traces=False) for one in (first, second)}
            plain, drafted = answers[id(off)], answers[id(on)]
            assert plain.tokens == drafted.tokens
            draft = drafted.usage.draft
            assert draft is not None
            assert draft.accepted_tokens == 0
            if pair:  # the first one warms up and finds the widths
                ratios.append(drafted.decode_rate / plain.decode_rate)
                print(f"ratio={ratios[-1]:.3f} off={plain.decode_rate:.0f} rounds={draft.rounds}")
    print(f"median={statistics.median(ratios):.3f} of {len(ratios)}")


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
