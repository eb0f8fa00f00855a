"""How many drafts of an artifact's MTP head would be accepted in its own greedy answers.

    python -m tools.tiny.drafts [ARTIFACT] [--answers 60]

Asks the exam's first JSON and tool questions through the reference engine behind the in-process host, which
gives the token ids that a draft is compared with.
"""

from __future__ import annotations

import argparse
import queue
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from ninfer import bundled
from ninfer.engine.events import Delta, Failed, Finished, RequestEvent
from ninfer.engine.inprocess import InProcessHost
from ninfer.engine.requests import GenerationRequest, SamplingParameters
from ninfer.engine.settings import EngineSettings
from ninfer.reference.engine import open_engine
from ninfer.server.served_model import ModelChoices, open_served_model
from tools.tiny import tokenizer
from tools.tiny.acceptance import DRAFTS, Acceptance
from tools.tiny.conversation import conversation_of
from tools.tiny.exam import MAX_CONTEXT, MAX_TOKENS
from tools.tiny.questions import Question, paper

_GREEDY = SamplingParameters(
    temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, presence_penalty=0.0, frequency_penalty=0.0, seed=0
)


@dataclass(frozen=True, slots=True)
class Drafted:
    """One answer: drafts ``accepted`` and ``offered`` by position."""

    skill: str
    accepted: tuple[int, ...]
    offered: tuple[int, ...]


def measure(artifact: Path, answers: int) -> list[Drafted]:
    """The first ``answers`` JSON and tool questions. Errors: ``ValueError`` without an MTP head."""
    acceptance = Acceptance.open(artifact)
    if acceptance is None:
        raise ValueError(f"{artifact} has no MTP head")
    model = open_served_model(artifact, ModelChoices(chat_template=None, max_context=MAX_CONTEXT))
    host = InProcessHost(open_engine(EngineSettings("reference", str(artifact), MAX_CONTEXT)))
    questions = [q for q in paper(tokenizer.load()) if q.skill.startswith(("tool", "json"))]
    measured = []
    try:
        for question in questions[:answers]:
            prompt = model.preparer.prepare(conversation_of(question.document))
            request = GenerationRequest(
                id="drafts",
                tokens=prompt.tokens.astype("<i4").tobytes(),
                positions=b"",
                initial_channel=prompt.initial_channel,
                sampling=_GREEDY,
                max_tokens=MAX_TOKENS,
                stop_token_ids=model.stop_token_ids,
            )
            counts = acceptance.measure(prompt.tokens.tolist(), _answer(host, request))
            measured.append(Drafted(_kind(question), *counts))
    finally:
        host.close()
    return measured


def report(measured: list[Drafted]) -> str:
    """Acceptance at each position, given that all before it were accepted."""
    totals: dict[str, list[list[int]]] = defaultdict(lambda: [[0] * DRAFTS, [0] * DRAFTS])
    for drafted in measured:
        for table, counts in zip(totals[drafted.skill], (drafted.accepted, drafted.offered), strict=True):
            for position, count in enumerate(counts):
                table[position] += count
    lines = ["MTP drafts accepted, by position (where all before were)"]
    for name, (accepted, offered) in sorted(totals.items()):
        if offered[0]:
            shares = "  ".join(f"{a / max(1, o):6.1%}" for a, o in zip(accepted, offered, strict=True))
            lines.append(f"  {name:8} {shares}   of {offered[0]} rounds")
    return "\n".join(lines)


def _kind(question: Question) -> str:
    return "json" if "json" in question.skill else "tool"


def _answer(host: InProcessHost, request: GenerationRequest) -> list[int]:
    events: queue.SimpleQueue[RequestEvent] = queue.SimpleQueue()
    host.submit(request, events.put)
    ids: list[int] = []
    while True:
        event = events.get()
        if isinstance(event, Delta):
            ids += event.token_ids
        elif isinstance(event, Failed):
            raise RuntimeError(f"{event.code}: {event.message}")
        elif isinstance(event, Finished):
            return ids


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools.tiny.drafts", description=__doc__)
    parser.add_argument("artifact", nargs="?", type=Path, default=bundled.path())
    parser.add_argument("--answers", type=int, default=60)
    settings = parser.parse_args()
    print(report(measure(settings.artifact, settings.answers)))


if __name__ == "__main__":
    main()
