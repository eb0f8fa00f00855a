"""Copies end to end: the same questions asked of two servers in turn, of which one drafts.

    python -m tools.bench.draft.served [ARTIFACT] [--questions 8] [--seeds 1,2,3] [--length 450,550]
                                       [--draft "--spec mtp --adaptive-mtp --ngram-draft-tokens 63"]
                                       [--server "--cpu-activations bf16"] [--cold] [--json FILE]

Both serve over HTTP and stream, as a server does that was told nothing else: a question asked with another
seed finds its prompt in the prefix cache, if it is still there. ``--cold``: prompts are never reused. A
request is timed from before it is sent until its stream has ended. Answers are drawn with the model's
presets; only those count that are right without drafts, and with them they must be the same. Prints every
pair, then the ratio of all seconds, of each question's median, and what a token and the first one took.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ninfer import bundled
from ninfer.server.served_model import ModelChoices, open_served_model
from tools.bench.draft.tasks import Task, tasks
from tools.bench.server import running_server
from tools.bench.streams import Client
from tools.tiny.grade import is_right
from tools.tiny.wire import chat_body

MAX_TOKENS = 1500
# An event with some text of the answer; the first one has none.
_TEXT = re.compile(rb'"content": ?"[^"]')


@dataclass(frozen=True, slots=True)
class Served:
    """One answer as a client saw it; seconds from sending."""

    text: str
    stopped: bool
    tokens: int
    first_s: float
    whole_s: float
    cached: int


def ask(address: tuple[str, int], body: dict[str, Any]) -> Served:
    """Stream one chat completion. Errors: ``RuntimeError`` with what the server said instead."""
    connection = http.client.HTTPConnection(*address, timeout=120)
    try:
        began, first = time.perf_counter(), 0.0
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {reply.read().decode(errors='replace')[:400]}")
        lines: list[bytes] = []
        while line := reply.readline():
            if not first and _TEXT.search(line):
                first = time.perf_counter() - began
            lines.append(line)
        whole = time.perf_counter() - began
    finally:
        connection.close()
    return _read(lines, first, whole)


def _read(lines: Sequence[bytes], first: float, whole: float) -> Served:
    parts, reason, usage = [], None, dict[str, Any]()
    for line in lines:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(str(event["error"]))
        for choice in event["choices"]:
            parts.append(choice["delta"].get("content") or "")
            reason = choice["finish_reason"] or reason
        usage = event.get("usage") or usage
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Served("".join(parts), reason == "stop", usage["completion_tokens"], first, whole, cached)


def body_of(task: Task, model: str, seed: int) -> dict[str, Any]:
    """The question with the model's presets, streamed."""
    return chat_body(task.document) | {
        "model": model, "seed": seed, "max_tokens": MAX_TOKENS, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


def compare(
    urls: tuple[str, str], asked: Sequence[Task], seeds: Sequence[int]
) -> list[list[tuple[Served, Served]]]:
    """By question, the right answers of the first server beside the second's, asked in turn."""
    addresses = [(parts.hostname or "", parts.port or 0) for parts in map(urlsplit, urls)]
    name, pairs = Client(urls[0]).model, []
    for number, task in enumerate(asked):
        found = []
        for seed in seeds:
            body = body_of(task, name, seed)
            order = (0, 1) if (number + seed) % 2 else (1, 0)
            answers = {which: ask(addresses[which], body) for which in order}
            plain, drafted = answers[0], answers[1]
            if plain.text != drafted.text:
                raise RuntimeError(f"drafts changed the answer to question {number}, seed {seed}")
            if is_right(task.document.exchanges[-1], plain.text, plain.stopped):
                found.append((plain, drafted))
                print(
                    f"question={number} seed={seed} tokens={plain.tokens} "
                    f"cached={plain.cached},{drafted.cached} off_ms={1e3 * plain.whole_s:.1f} "
                    f"on_ms={1e3 * drafted.whole_s:.1f} ratio={plain.whole_s / drafted.whole_s:.2f}",
                    flush=True,
                )
        if found:
            pairs.append(found)
    return pairs


def summary(pairs: Sequence[Sequence[tuple[Served, Served]]]) -> dict[str, float]:
    """Ratios of whole requests, off over on, and the means behind them in milliseconds."""
    flat = [pair for found in pairs for pair in found]
    off, on = (sum(pair[side].whole_s for pair in flat) for side in (0, 1))
    return {
        "answers": len(flat),
        "speedup": off / on,
        "median_speedup": statistics.median(
            statistics.median(plain.whole_s / drafted.whole_s for plain, drafted in found) for found in pairs
        ),
        "off_ms": 1e3 * off / len(flat),
        "on_ms": 1e3 * on / len(flat),
        "off_first_ms": 1e3 * statistics.fmean(plain.first_s for plain, _ in flat),
        "on_first_ms": 1e3 * statistics.fmean(drafted.first_s for _, drafted in flat),
        "tokens": statistics.fmean(plain.tokens for plain, _ in flat),
        "off_cached": statistics.fmean(plain.cached for plain, _ in flat),
        "on_cached": statistics.fmean(drafted.cached for _, drafted in flat),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="tools.bench.draft.served",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("artifact", nargs="?", type=Path, default=bundled.path())
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--length", default="450,550", help="tokens of copied answers, from,to")
    parser.add_argument("--draft", default="--spec mtp --adaptive-mtp --ngram-draft-tokens 63")
    parser.add_argument("--server", default="", help="options of both servers")
    parser.add_argument("--cold", action="store_true", help="no prompt is found in the prefix cache")
    parser.add_argument("--json", type=Path)
    settings = parser.parse_args()
    low, high = map(int, settings.length.split(","))
    model = open_served_model(settings.artifact, ModelChoices())
    tokenizer = model.preparer._tokenizer  # type: ignore[attr-defined]
    asked = list(tasks(tokenizer, "copy", settings.questions, (low, high), seed=1))
    seeds = [int(seed) for seed in settings.seeds.split(",")]
    shared = [str(settings.artifact), "--max-concurrency", "1", *settings.server.split()]
    shared += ["--no-prefix-reuse"] if settings.cold else []
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder)
        with (
            running_server(shared, logs / "off") as off,
            running_server([*shared, *settings.draft.split()], logs / "on") as on,
        ):
            compare((off, on), asked[:1], seeds[:1])  # warms both up
            pairs = compare((off, on), asked, seeds)
    found = summary(pairs)
    print(" ".join(f"{name}={value:.2f}" for name, value in found.items()))
    if settings.json:
        rows = [[asdict(plain), asdict(drafted)] for found in pairs for plain, drafted in found]
        settings.json.write_text(json.dumps({"summary": summary(pairs), "answers": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
