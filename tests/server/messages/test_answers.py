"""Messages answers over scripted plays: whole and streamed alike, block by block, to every kind of end."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Client, read_until
from conformance.http.streams import named_events
from ninfer.engine.scripted import Play, Script, Step
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.inprocess import serving
from tests.server.messages.asking import ask, body, deltas, order, refused, streamed, tool, user

OFF = {"thinking": {"type": "disabled"}}
CALL = "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"


def play(*texts: str, **members: Any) -> Play:
    return Play(tuple(Step(text=text) for text in texts), **members)


PLAYS = {
    "1": play("I ", "think", "</think>\n\n", "Hel", "lo"),
    "2": play("Hel", "lo ", "EN", "D x"),
    "3": play("a", repeat=100_000),
    "4": play("I'll look.", "\n\n", CALL[:20], CALL[20:]),
    "5": Play((Step(text="a"), Step(text="b"), Step(fail="assertion"))),
    "6": Play((Step(fail="memory"),)),
    "7": Play((Step(fail="unavailable"),)),
    "8": Play((Step(text="x", wait_s=0.02),), repeat=10**6),
    "9": Play((Step(text="why"), Step(wait_s=0.35), Step(text="</think>\n\nso"))),
    "10": play("Hi", cached_tokens=5),
    "11": play(CALL, "\n", CALL.replace("1", "2")),
    "12": Play((Step(fail="assertion"),)),
}


@pytest.fixture(scope="module")
def engine() -> RecordingEngine:
    return RecordingEngine(Script(plays=PLAYS))


@pytest.fixture(scope="module")
def client(nano: Path, engine: RecordingEngine) -> Iterator[Client]:
    with serving(nano, engine, (*MODEL, "--max-context", "2048")) as client:
        yield client


def both(client: Client, seed: int, **members: Any) -> dict[str, Any]:
    """A message, whose stream says the same."""
    message: dict[str, Any] = ask(client, seed=seed, **members).json
    events = streamed(client, seed=seed, **members)
    texts = {block["type"]: block for block in message["content"]}
    assert deltas(events, "text_delta") == texts.get("text", {}).get("text", "")
    assert deltas(events, "thinking_delta") == texts.get("thinking", {}).get("thinking", "")
    assert deltas(events, "signature_delta") == texts.get("thinking", {}).get("signature", "")
    inputs = [block["input"] for block in message["content"] if block["type"] == "tool_use"]
    assert [json.loads(piece) for piece in _arguments(events)] == inputs
    (end,) = (data for name, data in events if name == "message_delta")
    assert end["delta"] == {name: message[name] for name in ("stop_reason", "stop_sequence")}
    assert end["usage"] == message["usage"]
    return message


def _arguments(events: Any) -> Iterator[str]:
    starts = [data["index"] for name, data in events if name == "content_block_start"]
    for index in starts:
        pieces = [
            data["delta"]["partial_json"]
            for name, data in events
            if name == "content_block_delta" and data["index"] == index and "partial_json" in data["delta"]
        ]
        if pieces:
            yield "".join(pieces)


@pytest.mark.clause("HTTP-011", "MSG-027", "MSGSSE-001", "MSGSSE-003", "MSGSSE-004")
def test_thinking_then_text(client: Client) -> None:
    message = both(client, 1)
    shown, said = message["content"]
    assert (message["type"], message["role"], message["stop_reason"]) == ("message", "assistant", "end_turn")
    assert (shown["thinking"], said["text"]) == ("I think", "Hello")
    assert shown["signature"]
    names = order(streamed(client, seed=1))
    assert names[0] == "message_start"
    assert names[-1] == "message_stop"
    first_block = names[1 : names.index("content_block_stop") + 1]
    assert first_block[-2:] == ["signature_delta", "content_block_stop"]
    assert set(first_block[1:-2]) == {"thinking_delta"}


@pytest.mark.clause("MSG-029", "MSGSSE-005")
def test_omitted_thinking(client: Client) -> None:
    omitted = {"thinking": {"type": "adaptive", "display": "omitted"}}
    shown, said = both(client, 1, **omitted)["content"]
    mark, _, carried = shown["signature"].partition(":")
    assert (shown["thinking"], mark, said["text"]) == ("", "ninfer-reasoning.v1", "Hello")
    assert base64.b64decode(carried).decode() == "I think"
    events = streamed(client, seed=1, **omitted)
    assert not deltas(events, "thinking_delta")
    assert deltas(events, "signature_delta") == shown["signature"]


@pytest.mark.clause("MSG-023")
def test_kinds_of_thinking(client: Client, engine: RecordingEngine) -> None:
    assert ask(client, **OFF).status == 200
    assert engine.last.initial_channel == "content"
    for kind in ({"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1024}):
        assert ask(client, thinking=kind).status == 200
        assert engine.last.initial_channel == "reasoning"
    refused(client, thinking={"type": "on"})
    refused(client, thinking={"type": "adaptive", "display": "all"})


@pytest.mark.clause("MSG-024")
def test_a_budget_has_a_least_size(client: Client) -> None:
    assert ask(client, thinking={"type": "enabled", "budget_tokens": 1024}).status == 200
    for budget in ({"budget_tokens": 1023}, {}, {"budget_tokens": "1024"}):
        assert "budget_tokens" in refused(client, thinking={"type": "enabled"} | budget)["message"]


@pytest.mark.clause("MSG-021", "MSGSSE-007")
def test_stop_sequences(client: Client) -> None:
    message = both(client, 2, stop_sequences=["END", "no"], **OFF)
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")
    assert message["content"] == [{"type": "text", "text": "Hello "}]
    unmatched = both(client, 2, stop_sequences=["never"], **OFF)
    assert (unmatched["stop_reason"], unmatched["stop_sequence"]) == ("end_turn", None)
    for wrong in (["a"] * 5, [""], [3], "END"):
        refused(client, stop_sequences=wrong)


@pytest.mark.clause("MSG-002", "MSG-003")
def test_output_limits(client: Client) -> None:
    message = both(client, 3, max_tokens=7, **OFF)
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 7)
    thinking = both(client, 3, max_tokens=50)
    assert thinking["usage"]["output_tokens"] == 50
    for wrong in (0, -1, "7"):
        refused(client, max_tokens=wrong)


@pytest.mark.clause("MSG-001")
def test_the_servers_own_limit(nano: Path) -> None:
    with serving(nano, RecordingEngine(Script(plays=PLAYS)), ("--default-max-tokens", "16")) as client:
        message = ask(client, seed=3, max_tokens=None).json
        assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 16)


@pytest.mark.clause("MSG-022")
def test_a_full_context(client: Client) -> None:
    message = both(client, 3, max_tokens=4096, **OFF)
    assert message["stop_reason"] == "model_context_window_exceeded"
    used = message["usage"]["input_tokens"] + message["usage"]["output_tokens"]
    assert used == 2048


def test_a_prompt_that_is_too_long(client: Client) -> None:
    error = refused(client, user("word " * 4000))
    assert error["code"] == "context_length_exceeded"
    assert "prompt is too long" in error["message"]
    assert "> 2048 maximum" in error["message"]


@pytest.mark.clause("MSGSSE-002")
def test_the_start_tells_what_is_reused(client: Client) -> None:
    usage = both(client, 10, **OFF)["usage"]
    assert usage["cache_read_input_tokens"] == 5
    assert usage["cache_creation_input_tokens"] is None
    (_, start), *_ = streamed(client, seed=10, **OFF)
    counts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert {name: start["message"]["usage"][name] for name in counts} == {
        name: usage[name] for name in counts
    }


@pytest.mark.clause("MSGSSE-006")
def test_calls(client: Client) -> None:
    message = both(client, 4, tools=[tool()], **OFF)
    said, used = message["content"]
    assert said == {"type": "text", "text": "I'll look."}
    assert (used["type"], used["name"], used["input"]) == ("tool_use", "f", {"x": 1})
    assert used["id"].startswith("toolu_")
    assert message["stop_reason"] == "tool_use"
    two = both(client, 11, tools=[tool()], **OFF)["content"]
    assert [block["input"] for block in two] == [{"x": 1}, {"x": 2}]
    assert len({block["id"] for block in two}) == 2


@pytest.mark.clause_early("MSG-040")
def test_no_calls_wanted(client: Client) -> None:
    (said,) = both(client, 4, tools=[tool()], tool_choice={"type": "none"}, **OFF)["content"]
    assert said["text"] == "I'll look.\n\n" + CALL


@pytest.mark.clause("MSG-064", "MSG-065", "HTTP-020")
def test_answers_have_ids(client: Client) -> None:
    answers = [
        ask(client),
        client.request("POST", "/v1/messages", body(stream=True)),
        ask(client, model=""),
        client.request("POST", "/v1/messages/count_tokens", body()),
        client.request("POST", "/v1/messages", b"{"),
        client.request("GET", "/v1/messages"),
        client.request("POST", "/v1/v1/messages", body(model="")),
    ]
    ids = [answer.headers["request-id"] for answer in answers]
    assert len(set(ids)) == len(ids)
    assert "x-request-id" not in answers[0].headers
    for answer in answers:
        if answer.status != 200:
            assert answer.json["type"] == "error"
            assert answer.json["request_id"] == answer.headers["request-id"]


@pytest.mark.clause_early("HTTP-015", "HTTP-016")
def test_the_doubled_prefix(client: Client) -> None:
    assert client.request("POST", "/v1/v1/messages", body(seed=1)).json["content"]
    wrong = [client.request("POST", path, body(max_tokens=0)) for path in ("/v1/messages", "/v1/v1/messages")]
    assert [(answer.status, answer.error) for answer in wrong] == [(400, wrong[0].error)] * 2


@pytest.mark.parametrize(
    ("seed", "status", "kind", "code"),
    [
        (6, 503, "api_error", "insufficient_memory"),
        (7, 503, "api_error", "engine_unavailable"),
        (12, 500, "api_error", "internal_error"),
    ],
)
def test_failures_before_the_answer(client: Client, seed: int, status: int, kind: str, code: str) -> None:
    answer = ask(client, seed=seed, **OFF)
    assert (answer.status, answer.error["type"], answer.error["code"]) == (status, kind, code)


def test_a_failure_inside_a_stream(client: Client) -> None:
    events = streamed(client, seed=5, **OFF)
    name, error = events[-1]
    assert (name, error["error"]["code"], error["error"]["type"]) == ("error", "internal_error", "api_error")
    assert error["request_id"]


@pytest.mark.clause("MSG-066")
def test_overload(nano: Path) -> None:
    one = ("--max-concurrency", "1", "--max-pending-requests", "0")
    with serving(nano, RecordingEngine(Script(plays=PLAYS)), one) as client:
        payload = json.dumps(body(seed=8, stream=True, max_tokens=10**6)).encode()
        head = f"POST /v1/messages HTTP/1.1\r\nHost: t\r\nContent-Length: {len(payload)}\r\n\r\n"
        running = client.raw(head.encode() + payload)
        read_until(running, b"message_start")
        answer = ask(client)
        assert (answer.status, answer.error["type"]) == (529, "overloaded_error")
        running.close()


@pytest.mark.clause("LIVE-003")
def test_silence_is_broken_by_comments(nano: Path) -> None:
    """The comment's interval is 5 s outside this test."""
    limits = {"stream_comment_after_s": 0.1}
    with serving(nano, RecordingEngine(Script(plays=PLAYS)), MODEL, limits=limits) as client:
        answer = client.request("POST", "/v1/messages", body(seed=9, stream=True))
    comments = answer.body.count(b": keep-alive\n\n")
    assert 2 <= comments <= 4
    with serving(nano, RecordingEngine(Script(plays=PLAYS)), MODEL) as client:
        without = client.request("POST", "/v1/messages", body(seed=9, stream=True))
    assert b": keep-alive" not in without.body
    names = [name for name, _ in named_events(answer.body)]
    assert names == [name for name, _ in named_events(without.body)]
