"""Examines any artifact on held-out prompts, on a CPU.

    python -m tools.tiny.exam [ARTIFACT] [--limit N] [--processes 2] [--drafts 40] [--json FILE]

Prompts go through ``ninfer.prompt``, answers come greedily from the reference engine behind the in-process
host and are graded as raw text. Prints a table by skill and length, then how many MTP drafts would be
accepted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

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
from tools.tiny.grade import is_right
from tools.tiny.questions import LENGTHS, Question, paper

MAX_CONTEXT = 4096
_ROOM = 900  # tokens an answer may take: the longest right one has about 700
_GREEDY = SamplingParameters(
    temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, presence_penalty=0.0, frequency_penalty=0.0, seed=0
)
# What issue and card promise: row, skills, least share.
_GROUPS: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("tool calls", ("tool", "tool-parallel", "tool-none", "tool-result"), 0.95),
    ("JSON", ("json", "json-listed", "json-list"), 0.95),
    ("sums", ("sum", "sum-bare"), 0.80),
    ("edits", ("edit",), 0.60),
    ("chat", ("fact", "yes-no", "unknown", "instruction"), 0.80),
    ("recall", ("recall", "lookup"), 0.80),
)


@dataclass(frozen=True, slots=True)
class Mark:
    """One graded answer; ``accepted`` and ``offered`` count drafts by position, empty where not measured."""

    skill: str
    bucket: str
    thinking: bool
    right: bool
    ended: bool
    tokens: int
    text: str
    wanted: str
    accepted: tuple[int, ...] = ()
    offered: tuple[int, ...] = ()


class Examiner:
    """Asks one artifact; one engine, one question at a time."""

    def __init__(self, artifact: Path) -> None:
        self._model = open_served_model(artifact, ModelChoices(chat_template=None, max_context=MAX_CONTEXT))
        self._host = InProcessHost(open_engine(EngineSettings("reference", str(artifact), MAX_CONTEXT)))
        self._acceptance = Acceptance.open(artifact)

    def close(self) -> None:
        self._host.close()

    def ask(self, question: Question, drafts: bool) -> Mark:
        """The answer to ``question``, graded; ``drafts`` measures the MTP head on it too."""
        prompt = self._model.preparer.prepare(conversation_of(question.document))
        request = GenerationRequest(
            id="exam",
            tokens=prompt.tokens.astype("<i4").tobytes(),
            positions=b"",
            initial_channel=prompt.initial_channel,
            sampling=_GREEDY,
            max_tokens=_ROOM,
            stop_token_ids=self._model.stop_token_ids,
        )
        texts, ids, ended = self._answer(request)
        exchange = question.document.exchanges[-1]
        accepted: tuple[int, ...] = ()
        offered: tuple[int, ...] = ()
        if drafts and self._acceptance is not None:
            accepted, offered = self._acceptance.measure(prompt.tokens.tolist(), ids)
        wanted = exchange.answer or json.dumps([asdict(call) for call in exchange.calls])
        right = is_right(exchange, texts["content"], ended)
        return Mark(
            question.skill, question.bucket, prompt.thinking, right, ended,
            len(ids), texts["content"], wanted, accepted, offered,
        )  # fmt: skip

    def _answer(self, request: GenerationRequest) -> tuple[dict[str, str], list[int], bool]:
        events: queue.SimpleQueue[RequestEvent] = queue.SimpleQueue()
        self._host.submit(request, events.put)
        texts: dict[str, str] = {"reasoning": "", "content": ""}
        ids: list[int] = []
        while True:
            event = events.get()
            if isinstance(event, Delta):
                texts[event.channel] += event.text
                ids += event.token_ids
            elif isinstance(event, Failed):
                raise RuntimeError(f"{event.code}: {event.message}")
            elif isinstance(event, Finished):
                return texts, ids, event.reason == "stop"


def _worker(job: tuple[Path, int, int, int | None, int]) -> list[Mark]:
    """Every ``step``-th question from ``index`` on; the first JSON and tool answers also measure drafts."""
    artifact, index, step, limit, drafts = job
    torch.set_num_threads(1)
    examiner, marks = Examiner(artifact), list[Mark]()
    try:
        for question in paper(tokenizer.load())[:limit][index::step]:
            measured = drafts > 0 and question.skill.startswith(("tool", "json"))
            drafts -= measured
            marks.append(examiner.ask(question, measured))
    finally:
        examiner.close()
    return marks


def examine(artifact: Path, *, limit: int | None = None, processes: int = 1, drafts: int = 40) -> list[Mark]:
    """Ask the whole paper (or its first ``limit`` questions) in ``processes`` processes."""
    jobs = [(artifact, index, processes, limit, drafts // processes) for index in range(processes)]
    if processes == 1:
        return _worker(jobs[0])
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return [mark for marks in pool.map(_worker, jobs) for mark in marks]


def report(marks: list[Mark]) -> str:
    """The table: a row a promise, then a row a skill."""
    lines = [f"{'':24}{'asked':>6}{'right':>8}{'promised':>10}"]
    for name, skills, promise in _GROUPS:
        lines.append(_row(name, [m for m in marks if m.skill in skills], promise))
    copies = [mark for mark in marks if mark.bucket]
    short = [f"{low}-{high}" for low, high in LENGTHS[:2]]
    lines.append(_row("copies 20-200", [m for m in copies if m.bucket in short], 0.90))
    lines.append(_row("copies 20-600", copies, None))
    lines.append(_row("copies 201-600", [m for m in copies if m.bucket not in short], 0.60))
    stopped = [mark.ended for mark in marks]
    lines.append(f"{'stopping':24}{len(marks):6}{sum(stopped) / max(1, len(marks)):8.1%}{0.98:10.0%}")
    lines += ["", "by skill"]
    for skill in dict.fromkeys(sorted(mark.skill for mark in marks)):
        lines.append(_row(f"  {skill}", [m for m in marks if m.skill == skill], None))
    lines += ["", "copies by length"]
    for low, high in LENGTHS:
        lines.append(_row(f"  {low}-{high}", [m for m in copies if m.bucket == f"{low}-{high}"], None))
    lines += ["", "by mode"]
    for name, thinking in (("  thinking", True), ("  not thinking", False)):
        lines.append(_row(name, [m for m in marks if m.thinking == thinking], None))
    return "\n".join([*lines, "", *_drafts(marks)])


def _row(name: str, marks: list[Mark], promise: float | None) -> str:
    if not marks:
        return f"{name:24}{0:6}"
    share = sum(mark.right for mark in marks) / len(marks)
    promised = f"{promise:10.0%}{'' if share >= promise else '  MISSED'}" if promise is not None else ""
    return f"{name:24}{len(marks):6}{share:8.1%}{promised}"


def _drafts(marks: list[Mark]) -> list[str]:
    """Acceptance at each position, given that all before it were accepted."""
    totals: dict[str, list[list[int]]] = defaultdict(lambda: [[0] * DRAFTS, [0] * DRAFTS])
    for mark in marks:
        for table, counts in zip(
            totals["json" if "json" in mark.skill else "tool"], (mark.accepted, mark.offered), strict=True
        ):
            for position, count in enumerate(counts):
                table[position] += count
    lines = ["MTP drafts accepted, by position (where all before were)"]
    for name, (accepted, offered) in sorted(totals.items()):
        if offered[0]:
            shares = "  ".join(f"{a / max(1, o):6.1%}" for a, o in zip(accepted, offered, strict=True))
            lines.append(f"  {name:8} {shares}   of {offered[0]} rounds")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools.tiny.exam", description=__doc__)
    parser.add_argument("artifact", nargs="?", type=Path, default=bundled.path())
    parser.add_argument("--limit", type=int)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--drafts", type=int, default=60, help="JSON and tool answers that measure drafts")
    parser.add_argument("--json", type=Path, help="write every mark there, one JSON a line")
    settings = parser.parse_args()
    began = time.monotonic()
    marks = examine(
        settings.artifact, limit=settings.limit, processes=settings.processes, drafts=settings.drafts
    )
    if settings.json:
        settings.json.write_text("".join(json.dumps(_plain(mark)) + "\n" for mark in marks))
    print(report(marks))
    print(f"\n{len(marks)} questions, {time.monotonic() - began:.0f} s, {settings.artifact}")


def _plain(mark: Mark) -> dict[str, Any]:
    return asdict(mark)


if __name__ == "__main__":
    main()
