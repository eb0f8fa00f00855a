"""What drafts are worth: every question answered without and with them in turn, by kind of text.

    python -m tools.bench.draft [ARTIFACT] [--kinds copy,json] [--questions 8] [--seeds 1,2,3]
                                [--length 450,550] [--modes mtp,mtp+15,mtp+31] [--cpu-activations bf16]
                                [--json FILE] [--plot FILE.svg]

Answers are drawn with the model's presets. Only questions count whose answer is right (``tools.tiny.grade``)
without drafts and, the same token for token, with them; how many do not count is printed. The table says, per
kind and mode: tokens per round, over all rounds and over rounds that copied; the speed of decoding and of
whole requests against no drafts; host time per round; acceptance by place with the counts behind it.

Whole requests are told twice where answers are copies: ``whole`` computes the prompt, ``cached`` finds it in
the prefix cache up to the opening of the answer, for the same conversation was asked for one token before.
That is an agent's turn over a text that it has read. (The text cannot stand further back: the bundled model
copies from the newest message only, 0 of 25 right with five ways to ask.)
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ninfer import bundled
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.settings import DraftSettings
from ninfer.prompt.copy_sources import copy_sources
from ninfer.server.resolution import GenerationDefaults, GenerationFields, resolve, with_copy_sources
from ninfer.server.served_model import ModelChoices, ServedModel, open_served_model
from tools.bench.bars import Bar, bars_svg
from tools.bench.draft.runs import MAX_CONTEXT, Answer, Runner, runner
from tools.bench.draft.tasks import COPIES, KINDS, Task, tasks
from tools.tiny.grade import is_right

_MODE = re.compile(
    r"mtp(?P<tokens>\d*)(?P<adaptive>a?)(?P<head>h?)(?:\+(?P<copies>\d+)(?:@(?P<match>\d+))?)?\Z"
)


@dataclass(slots=True)
class Figures:
    """Everything of one kind and mode: answers without and with drafts, of the same questions.

    ``pairs`` have computed their prompts, ``cached`` had them in the prefix cache.
    """

    kind: str
    mode: str
    pairs: list[tuple[Answer, Answer]] = field(default_factory=list)
    wrong: int = 0
    cached: list[tuple[Answer, Answer]] = field(
        default_factory=list
    )  # the same with their prompts in the cache

    def tokens_per_round(self, copied: bool = False) -> float | None:
        """Committed tokens by round; with ``copied`` over the rounds that verified a copy."""
        rounds = [
            trace.committed[0]
            for _, answer in self.pairs
            for trace in answer.rounds
            if not copied or trace.copied[0]
        ]
        return statistics.fmean(rounds) if rounds else None

    def acceptance(self) -> list[tuple[int, int]]:
        """By place in the chain: (accepted, drafted)."""
        usages = [answer.usage.draft for _, answer in self.pairs]
        columns = max((len(usage.drafted_per_position) for usage in usages if usage), default=0)
        sums = [
            (
                sum(usage.accepted_per_position[place] for usage in usages if usage),
                sum(usage.drafted_per_position[place] for usage in usages if usage),
            )
            for place in range(columns)
        ]
        return [pair for pair in sums if pair[1]]

    def speedup(self, whole: bool = False) -> float:
        """Seconds without over seconds with drafts, of decode or of whole requests, over all questions."""
        return _ratio(self.pairs, lambda answer: answer.total_s if whole else answer.usage.decode_s)

    def cached_speedup(self) -> float | None:
        """As ``speedup`` of whole requests whose prompts are in the cache; None: none was asked."""
        return _ratio(self.cached, lambda answer: answer.total_s) if self.cached else None

    def members(self) -> dict[str, Any]:
        """For the JSON report."""
        return {
            "kind": self.kind,
            "mode": self.mode,
            "questions": len(self.pairs),
            "not_counted": self.wrong,
            "tokens_per_round": self.tokens_per_round(),
            "tokens_per_copy_round": self.tokens_per_round(copied=True),
            "decode_speedup": self.speedup(),
            "request_speedup": self.speedup(whole=True),
            "request_ms": _milliseconds(self.pairs),
            "cached_request_speedup": self.cached_speedup(),
            "cached_request_ms": _milliseconds(self.cached),
            "decode_tok_s_off": statistics.fmean(off.decode_rate for off, _ in self.pairs),
            "decode_tok_s_on": statistics.fmean(on.decode_rate for _, on in self.pairs),
            "host_us_per_round": 1e6 * statistics.median(on.host_s for _, on in self.pairs),
            "acceptance": self.acceptance(),
            "ngram_accepted_tokens": sum(
                on.usage.draft.ngram_accepted_tokens for _, on in self.pairs if on.usage.draft
            ),
            "computed_prefill_tokens": sum(
                on.usage.prompt_tokens - on.usage.cached_tokens for _, on in self.pairs
            ),
            "reused_tokens": sum(on.usage.cached_tokens for _, on in self.pairs),
            "cached_computed_prefill_tokens": sum(
                on.usage.prompt_tokens - on.usage.cached_tokens for _, on in self.cached
            ),
            "cached_reused_tokens": sum(on.usage.cached_tokens for _, on in self.cached),
        }


def _ratio(pairs: Sequence[tuple[Answer, Answer]], seconds: Callable[[Answer], float]) -> float:
    return sum(seconds(off) for off, _ in pairs) / sum(seconds(on) for _, on in pairs)


def _milliseconds(pairs: Sequence[tuple[Answer, Answer]]) -> list[float] | None:
    """A request's mean time without and with drafts."""
    if not pairs:
        return None
    return [
        1e3 * statistics.fmean(answer.total_s for answer in answers) for answers in zip(*pairs, strict=True)
    ]


def draft_settings(mode: str) -> DraftSettings:
    """``mtp[TOKENS][a][h][+COPIES[@MATCH]]``: a adaptive, h the proposal head. Errors: ``ValueError``."""
    found = _MODE.fullmatch(mode)
    if found is None:
        raise ValueError(f"{mode!r} is no mode: mtp[TOKENS][a][h][+COPIES[@MATCH]]")
    return DraftSettings(
        "mtp",
        int(found["tokens"] or 3),
        proposal_head=bool(found["head"]),
        adaptive=bool(found["adaptive"]),
        copy_tokens=int(found["copies"] or 0),
        copy_match=int(found["match"] or DraftSettings("mtp", 1).copy_match),
    )


def request_of(model: ServedModel, task: Task, name: str, seed: int) -> GenerationRequest:
    """The question as the server would ask it, with the presets."""
    prompt = model.preparer.prepare(task.conversation)
    request = resolve(model, GenerationDefaults(1500), name, prompt, GenerationFields(seed=seed))
    assert model.encode_sources is not None
    return with_copy_sources(request, copy_sources(task.conversation, model.encode_sources, MAX_CONTEXT))


def measure(
    model: ServedModel,
    runners: dict[str, Runner],
    cached: dict[str, Runner],
    asked: Sequence[Task],
    seeds: Sequence[int],
) -> Iterator[Figures]:
    """Figures per mode of one kind's questions, off and on in turn. ``off`` is the runner without drafts.

    ``cached`` are runners that keep prompts, empty where nothing is to be asked of them.
    """
    figures = {mode: Figures(asked[0].kind, mode) for mode in runners if mode != "off"}
    for number, task in enumerate(asked):
        for seed in seeds:
            request = request_of(model, task, f"{number}-{seed}", seed)
            for keeping in cached.values():
                keeping.prepare(request)
            off = runners["off"].answer(request)
            right = is_right(task.document.exchanges[-1], off.text, off.ended)
            for mode, one in figures.items():
                _pair(one.pairs if right else None, off, runners[mode].answer(request), one)
                one.wrong += not right
            if cached:
                off = cached["off"].answer(request)
                for mode, one in figures.items():
                    _pair(one.cached if right else None, off, cached[mode].answer(request), one)
    yield from figures.values()


def _pair(pairs: list[tuple[Answer, Answer]] | None, off: Answer, on: Answer, figures: Figures) -> None:
    """Keep two answers that count. Errors: ``AssertionError`` where they differ."""
    assert on.tokens == off.tokens, f"{figures.mode} changed an answer of kind {figures.kind}"
    if pairs is not None:
        pairs.append((off, on))


def row(figures: Figures) -> str:
    """One line of the table; a copying kind without an accepted copy is marked."""
    if not figures.pairs:
        return f"{figures.kind:10}{figures.mode:10}{0:5}{figures.wrong:8}  no right answer"
    found = figures.members()
    copies, cached = found["tokens_per_copy_round"], found["cached_request_speedup"]
    mark = "" if "+" not in figures.mode or found["ngram_accepted_tokens"] else "  NO COPY ACCEPTED"
    places = " ".join(f"{kept / tried:.2f}/{tried}" for kept, tried in found["acceptance"][:8])
    return (
        f"{figures.kind:10}{figures.mode:10}{found['questions']:5}{figures.wrong:8}"
        f"{found['tokens_per_round']:9.2f}{'-' if copies is None else f'{copies:.2f}':>9}"
        f"{found['decode_tok_s_off']:9.0f}{found['decode_tok_s_on']:9.0f}"
        f"{found['decode_speedup']:8.2f}{found['request_speedup']:8.2f}"
        f"{'-' if cached is None else f'{cached:.2f}':>8}"
        f"{found['host_us_per_round']:8.0f}  {places}{mark}"
    )


HEAD = (
    f"{'kind':10}{'mode':10}{'n':>5}{'not n':>8}{'tok/rnd':>9}{'copy t/r':>9}{'off t/s':>9}{'on t/s':>9}"
    f"{'decode':>8}{'whole':>8}{'cached':>8}{'host us':>8}  accepted/drafted by place"
)


def plot(all_figures: Sequence[Figures]) -> str:
    """Tokens per round by kind and mode as SVG, in shares of sixteen."""
    bars = [
        Bar(one.kind, one.mode, (rate := one.tokens_per_round() or 0.0) / 16, rate / 16, rate / 16, None)
        for one in all_figures
        if one.pairs
    ]
    return bars_svg("Tokens per round, in percent of sixteen", bars)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools.bench.draft", description=__doc__)
    parser.add_argument("artifact", nargs="?", type=Path, default=bundled.path())
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--length", default="450,550", help="tokens of copied answers, from,to")
    parser.add_argument("--modes", default="mtp,mtp+15,mtp+31")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cpu-activations", default="float32", choices=("float32", "bf16"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    settings = parser.parse_args()
    low, high = map(int, settings.length.split(","))
    model = open_served_model(settings.artifact, ModelChoices(max_context=MAX_CONTEXT, copies=True))
    tokenizer = model.preparer._tokenizer  # type: ignore[attr-defined]
    everything: list[Figures] = []
    print(HEAD)
    with ExitStack() as stack:
        modes: dict[str, DraftSettings | None] = {"off": None}
        modes |= {mode: draft_settings(mode) for mode in settings.modes.split(",")}
        kinds = settings.kinds.split(",")

        def opened(cache: bool) -> dict[str, Runner]:
            one = partial(
                runner, settings.artifact, tokenizer, threads=settings.threads,
                activations=settings.cpu_activations, cache=cache,
            )  # fmt: skip
            return {mode: stack.enter_context(one(draft)) for mode, draft in modes.items()}

        runners, cached = opened(False), opened(True) if not COPIES.isdisjoint(kinds) else {}
        for kind in kinds:
            asked = list(tasks(tokenizer, kind, settings.questions, (low, high), seed=1))
            seeds = [int(seed) for seed in settings.seeds.split(",")]
            for figures in measure(model, runners, cached if kind in COPIES else {}, asked, seeds):
                everything.append(figures)
                print(row(figures), flush=True)
    if settings.json:
        settings.json.write_text(json.dumps([f.members() for f in everything if f.pairs], indent=1) + "\n")
    if settings.plot:
        settings.plot.write_text(plot(everything))


if __name__ == "__main__":
    main()
