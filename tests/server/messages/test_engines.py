"""Messages over real engines: what sampling, budgets, deadlines and the cache do to an answer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Client
from tests.fast.conftest import COLD_LIMIT_S, compiled  # noqa: F401  (kernels before any server)
from tests.server.fast_client import Stream, eventually
from tests.server.fast_host import serving_fast
from tests.server.messages.asking import ask, assistant, body, text, thinking, user

pytestmark = pytest.mark.timeout(COLD_LIMIT_S)

OFF = {"thinking": {"type": "disabled"}}


@pytest.fixture(scope="module")
def fast(nano: Path) -> Iterator[Client]:
    arguments = ("--default-thinking-budget", "512")
    with serving_fast(nano, arguments) as (client, _):
        yield client


def said(message: dict[str, Any]) -> str:
    return json.dumps(message["content"])


@pytest.mark.clause("MSG-020")
def test_sampling(fast: Client) -> None:
    for fields, texts in (
        ({"temperature": 0}, 1),
        ({"temperature": 1, "top_k": 1}, 1),
        ({"temperature": 1}, 2),
    ):
        answers = {said(ask(fast, max_tokens=16, **fields, **OFF).json) for _ in range(5)}
        assert min(len(answers), 2) == texts


@pytest.mark.clause("MSG-025", "THINK-006")
def test_a_budget_closes_thinking(fast: Client) -> None:
    """A nano model never closes its thinking by itself; the server's own cap is 512."""
    fields = {"temperature": 1, "seed": 5}
    own = ask(fast, max_tokens=4000, thinking={"type": "enabled", "budget_tokens": 1024}, **fields).json
    usual = ask(fast, max_tokens=4000, thinking={"type": "adaptive"}, **fields).json
    longer, shorter = own["content"][0]["thinking"], usual["content"][0]["thinking"]
    assert [block["type"] for block in own["content"]] == ["thinking", "text"]
    close = shorter[len(_shared(longer, shorter)) :]
    assert close  # the guidance that closes thinking early
    assert longer.endswith(close)
    assert len(longer) > len(shorter)


def _shared(one: str, other: str) -> str:
    count = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(other))
    return other[:count]


@pytest.mark.clause("MSG-026")
def test_a_budget_beyond_the_output_limit(fast: Client) -> None:
    fields = {"temperature": 1, "seed": 5, "max_tokens": 200}
    message = ask(fast, thinking={"type": "enabled", "budget_tokens": 4096}, **fields).json
    free = ask(fast, thinking={"type": "enabled", "budget_tokens": 100_000}, **fields).json
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 200)
    assert [block["type"] for block in message["content"]] == ["thinking"]
    assert message["content"] == free["content"]


@pytest.mark.clause("MSG-067")
def test_waiting_too_long(nano: Path) -> None:
    arguments = (*("--max-concurrency", "1", "--max-pending-requests", "1", "--pending-timeout-ms", "200"),)
    with serving_fast(nano, arguments) as (client, host):
        host.program.before = lambda kind: time.sleep(0.002)
        with Stream(client, temperature=0, max_tokens=8000) as busy:
            busy.wait()
            answer = ask(client)
            assert (answer.status, answer.error["type"]) == (504, "timeout_error")
            assert answer.error["code"] == "request_queue_timeout"
        eventually(lambda: client.get("/health").status == 200)


@pytest.fixture
def empty(nano: Path) -> Iterator[Client]:
    """A server whose cache is empty and has room."""
    with serving_fast(nano, ("--device-snapshot-slots", "16")) as (client, _):
        yield client


HISTORY = [user("tell " * 100), assistant("so " * 100)]


@pytest.mark.clause("MSG-059", "MSG-060")
def test_what_is_reused(empty: Client) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
    first = ask(empty, *HISTORY, user("one"), **fields, **OFF).json["usage"]
    again = ask(empty, *HISTORY, user("one"), **fields, **OFF).json["usage"]
    total = first["input_tokens"] + first["cache_read_input_tokens"]
    assert first["cache_read_input_tokens"] == 0
    assert 0 < again["cache_read_input_tokens"] < total
    assert again["input_tokens"] == total - again["cache_read_input_tokens"]
    assert again["cache_creation_input_tokens"] is None
    changed = [user("Tell " + "tell " * 99), HISTORY[1]]
    dropped = ask(empty, *changed, user("one"), **fields, **OFF).json["usage"]
    assert dropped["cache_read_input_tokens"] < again["cache_read_input_tokens"]


@pytest.mark.clause("MSG-016", "MSG-031")
def test_what_is_no_part_of_the_prompt_does_not_disturb_reuse(empty: Client) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 8} | OFF

    def reused(*messages: Any, **members: Any) -> int:
        return int(ask(empty, *messages, **fields, **members).json["usage"]["cache_read_input_tokens"])

    def billing(mark: str) -> Any:
        return [text(f"x-anthropic-billing-header: cch={mark};"), text("Be brief. " * 40)]

    question = user("what now " * 30)
    assert reused(question, system=billing("aaaaa")) == 0
    same = reused(question, system=billing("aaaaa"))
    assert reused(question, system=billing("bbbbb")) == same > 0

    carried = "ninfer-reasoning.v1:bXVjaCB0byB0aGluayBhYm91dA=="
    for block in (thinking("much to think about"), thinking("", carried)):
        turn = [user("again " * 60), assistant([block, text("a " * 60)]), user("r")]
        members = {"preserve_thinking": True}
        if block["thinking"]:
            reused(*turn, **members)
            visible = reused(*turn, **members)
        else:
            assert reused(*turn, **members) == visible > 0


def test_bodies_are_what_the_client_sent(fast: Client) -> None:
    """A whole answer and the stream of the same seed say the same."""
    whole = ask(fast, temperature=1, seed=9, max_tokens=24).json
    stream = fast.request("POST", "/v1/messages", body(temperature=1, seed=9, max_tokens=24, stream=True))
    pieces = [json.loads(line[6:]) for line in stream.body.decode().splitlines() if line.startswith("data: ")]
    told = "".join(piece["delta"].get("thinking", "") for piece in pieces if "delta" in piece)
    assert told == whole["content"][0]["thinking"]
