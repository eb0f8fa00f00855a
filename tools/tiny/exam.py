"""Examines any artifact on held-out prompts over HTTP: what a client gets of it.

    python -m tools.tiny.exam [ARTIFACT] [--base-url URL] [--limit N] [--clients 8] [--json FILE]

Starts ``ninfer-serve`` with ARTIFACT (the bundled model) and its fast engine, unless a URL names a live
server. Questions go greedily over Chat Completions, tools and tool calls as the protocol has them. Prints a
table by promise, skill, length and mode.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conformance.http.client import Client
from ninfer import bundled
from tools.bench.server import running_server
from tools.tiny import tokenizer
from tools.tiny.data.exchange import Call
from tools.tiny.grade import is_right_answer
from tools.tiny.questions import LENGTHS, Question, paper
from tools.tiny.wire import chat_body

MAX_CONTEXT = 4096
MAX_TOKENS = 900  # an answer may take so many: the longest right one has about 700
_TIMEOUT_S = 300.0
_CLIENTS = 8  # also the server's lanes
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
    """One graded answer; ``calls`` as the server gave them."""

    skill: str
    bucket: str
    thinking: bool
    right: bool
    ended: bool
    tokens: int
    text: str
    calls: tuple[Call, ...]
    wanted: str


@contextmanager
def serving(artifact: Path, clients: int = _CLIENTS) -> Iterator[str]:
    """The base URL of a server of ``artifact`` with a lane for each client."""
    options = ["--max-concurrency", str(clients), "--max-context", str(MAX_CONTEXT)]
    with (
        tempfile.TemporaryDirectory(prefix="ninfer-exam-") as directory,
        running_server([str(artifact), *options], Path(directory) / "log") as url,
    ):
        yield url


def examine(base_url: str, *, limit: int | None = None, clients: int = _CLIENTS) -> list[Mark]:
    """Ask the whole paper (or its first ``limit`` questions), ``clients`` questions at a time."""
    client = Client(base_url, _TIMEOUT_S)
    (entry,) = client.get("/v1/models").json["data"]
    questions = paper(tokenizer.load())[:limit]
    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(lambda question: _ask(client, entry["id"], question), questions))


def _ask(client: Client, model: str, question: Question) -> Mark:
    body = chat_body(question.document) | {"model": model, "temperature": 0, "max_tokens": MAX_TOKENS}
    answer = client.request("POST", "/v1/chat/completions", body)
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {answer.error}")
    (choice,) = answer.json["choices"]
    message = choice["message"]
    calls = tuple(_call(call["function"]) for call in message.get("tool_calls", ()))
    text, ended = message["content"] or "", choice["finish_reason"] in ("stop", "tool_calls")
    exchange = question.document.exchanges[-1]
    return Mark(
        question.skill,
        question.bucket,
        question.document.effort is not None,
        is_right_answer(exchange, text, calls, ended),
        ended,
        answer.json["usage"]["completion_tokens"],
        text,
        calls,
        exchange.answer or json.dumps([asdict(call) for call in exchange.calls]),
    )


def _call(function: dict[str, str]) -> Call:
    return Call(function["name"], json.loads(function["arguments"]))


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
    return "\n".join(lines)


def _row(name: str, marks: list[Mark], promise: float | None) -> str:
    if not marks:
        return f"{name:24}{0:6}"
    share = sum(mark.right for mark in marks) / len(marks)
    promised = f"{promise:10.0%}{'' if share >= promise else '  MISSED'}" if promise is not None else ""
    return f"{name:24}{len(marks):6}{share:8.1%}{promised}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools.tiny.exam", description=__doc__)
    parser.add_argument("artifact", nargs="?", type=Path, default=bundled.path())
    parser.add_argument("--base-url", help="a live server instead of one started here")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--clients", type=int, default=_CLIENTS)
    parser.add_argument("--json", type=Path, help="write every mark there, one JSON a line")
    settings = parser.parse_args()
    if settings.base_url:
        _sit(settings, settings.base_url)
    else:
        with serving(settings.artifact, settings.clients) as url:
            _sit(settings, url)


def _sit(settings: argparse.Namespace, url: str) -> None:
    began = time.monotonic()
    marks = examine(url, limit=settings.limit, clients=settings.clients)
    if settings.json:
        settings.json.write_text("".join(json.dumps(_plain(mark)) + "\n" for mark in marks))
    print(report(marks))
    print(f"\n{len(marks)} questions, {time.monotonic() - began:.0f} s, {settings.clients} clients, {url}")


def _plain(mark: Mark) -> dict[str, Any]:
    return asdict(mark)


if __name__ == "__main__":
    main()
