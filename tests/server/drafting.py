"""Servers of the bundled model with copies, with drafts alone and without a drafter, and their questions."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Answer, Client
from ninfer import bundled
from tests.fast.conftest import COLD_LIMIT_S, compiled  # noqa: F401  (kernels before any server)
from tests.server.fast_host import FastHost, serving_fast
from tests.server.observe.lines import Log
from tools.tiny.data.documents import exam_document
from tools.tiny.wire import chat_body

MTP = ("--spec", "mtp", "--draft-tokens", "3")


@dataclass(frozen=True, slots=True)
class Served:
    """A serving process of the bundled model and its request log."""

    client: Client
    host: FastHost
    log: Log

    def ask(self, body: dict[str, Any]) -> Answer:
        answer = self.client.chat(**body)
        assert answer.status == 200, answer.error
        return answer

    def metric(self, name: str) -> float:
        text = self.client.get("/metrics").body.decode()
        found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    def speculative(self, answer: Answer) -> dict[str, Any]:
        """The drafts of one answer as the log has them."""
        done = self.log.until(
            lambda: [line for line in self.log.lines("request_done") if answer.json["id"] in str(line)]
        )
        found: dict[str, Any] = done[0]["speculative"]
        return found


@contextmanager
def serving(directory: Path, *options: str, artifact: Path | None = None) -> Iterator[Served]:
    log = Log(directory / "requests.jsonl")
    arguments = ("--max-context", "2048", *log.arguments, *options)
    path = artifact or bundled.path()
    with serving_fast(path, arguments, endless=False, kv_format="float32") as (client, host):
        yield Served(client, host, log)


@contextmanager
def three_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    """Copies of fifteen, drafts without copies, and no drafter at all."""
    modes = {"copies": MTP, "drafts": (*MTP, "--ngram-draft-tokens", "0"), "none": ()}
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(serving(tmp_path_factory.mktemp(name), *options))
            for name, options in modes.items()
        }


def copying(number: int, **members: Any) -> dict[str, Any]:
    """A held-out request to copy a hundred tokens or two."""
    rng = random.Random(f"copying {number}")
    while True:
        document = exam_document(rng, "copy-code")
        if document.effort is None and 300 < len(document.exchanges[-1].answer) < 700:
            return chat_body(document) | {"temperature": 0, "max_tokens": 300} | members


def text_of(answer: Answer) -> str:
    (choice,) = answer.json["choices"]
    return str(choice["message"]["content"])


def essence(answer: Answer) -> tuple[Any, ...]:
    """What a drafter must not change; what the cache offered depends on what was asked before."""
    (choice,) = answer.json["choices"]
    usage = dict(answer.json["usage"])
    del usage["prompt_tokens_details"]
    return choice, usage
