"""Chat over a scripted engine: channels, stops and failures exactly where a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Client
from conformance.http.schemas import check_answer, check_schema
from conformance.http.streams import chat_events, check_order, payloads, text_of
from ninfer.engine.events import Delta, Finished, RequestEvent
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.scripted import Play, Script, Step
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.inprocess import serving


def tokens(*texts: str) -> Play:
    return Play(tuple(Step(text=text) for text in texts))


PLAYS = {
    "1": tokens("I ", "think", "</think>", "\n\n", "Hel", "lo"),
    "2": tokens("a ", "</think>", " b", "</think>", "\n", "c"),
    "3": tokens("x</think>, y", "</think> ", "z</think>\\n", "w"),
    "4": tokens("one ", "ST", "OP two", "</think>", "\n\n", "three"),
    "5": tokens("think", "</think>\n\n", "one ", "ST", "OP two"),
    "6": Play((Step(fail="assertion"),)),
    "7": Play((Step(text="a</think>\n\n"), Step(text="b"), Step(fail="assertion"))),
    "8": Play((Step(fail="memory"),)),
    "9": Play((Step(fail="unavailable"),)),
    "10": Play((Step(hex="e282"), Step(hex="ac"), Step(hex="ff"), Step(text="!")), cached_tokens=3),
}


@pytest.fixture(scope="module")
def client(nano: Path) -> Iterator[Client]:
    with serving(nano, RecordingEngine(Script(plays=PLAYS)), MODEL) as client:
        yield client


def message(client: Client, seed: int, **members: Any) -> dict[str, Any]:
    answer = client.chat(seed=seed, **members)
    assert answer.status == 200
    check_answer("POST", "/v1/chat/completions", 200, answer.json)
    stream = payloads(client.chat(seed=seed, stream=True, **members).body)
    check_order("chat", chat_events(stream))
    found = dict(answer.json["choices"][0]["message"])
    assert text_of(stream) == found["content"]
    assert text_of(stream, "reasoning_content") == found.get("reasoning_content", "")
    return found


@pytest.mark.clause("CHAT-011")
def test_reasoning_and_answer_are_apart(client: Client) -> None:
    found = message(client, 1)
    assert (found["reasoning_content"], found["content"]) == ("I think", "Hello")


@pytest.mark.clause("THINK-001")
def test_thinking_ends_only_before_a_line_break(client: Client) -> None:
    found = message(client, 2)
    assert (found["reasoning_content"], found["content"]) == ("a </think> b", "c")


@pytest.mark.clause("THINK-002")
def test_a_quoted_close_stays_reasoning(client: Client) -> None:
    found = message(client, 3)
    assert found["reasoning_content"] == "x</think>, y</think> z</think>\\nw"
    assert found["content"] == ""


@pytest.mark.clause("FIELD-012")
def test_a_stop_in_reasoning_ends_the_answer(client: Client) -> None:
    answer = client.chat(seed=4, stop="STOP")
    assert answer.json["choices"][0]["message"]["reasoning_content"] == "one "
    assert answer.json["choices"][0]["message"]["content"] == ""
    assert answer.json["choices"][0]["finish_reason"] == "stop"
    assert answer.json["usage"]["completion_tokens"] == 3
    message(client, 4, stop="STOP")


@pytest.mark.clause("FIELD-011")
def test_a_stop_in_the_answer_is_not_part_of_it(client: Client) -> None:
    found = message(client, 5, stop=["STOP", "never"])
    assert (found["reasoning_content"], found["content"]) == ("think", "one ")


def test_usage_has_the_details_whole_and_streamed(client: Client) -> None:
    usage = client.chat(seed=10).json["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == 4
    stream = payloads(client.chat(seed=10, stream=True, stream_options={"include_usage": True}).body)
    assert stream[-1] == "[DONE]"
    last = stream[-2]
    assert not isinstance(last, str)
    assert last["usage"] == usage


@pytest.mark.parametrize("members", [{"max_tokens": 2}, {"stop": "lo"}, {}])
def test_the_usage_chunk_comes_once_however_the_answer_ends(client: Client, members: dict[str, Any]) -> None:
    for include in (True, False):
        body = client.chat(seed=1, stream=True, stream_options={"include_usage": include}, **members).body
        events = chat_events(payloads(body))
        check_order("chat", events)
        assert events.count("usage") == include


def test_bytes_become_characters_in_a_stream(client: Client) -> None:
    assert message(client, 10)["reasoning_content"] == "€\ufffd!"


@pytest.mark.clause("HTTP-021")
@pytest.mark.parametrize(
    ("seed", "status", "code"),
    [(6, 500, "internal_error"), (8, 503, "insufficient_memory"), (9, 503, "engine_unavailable")],
)
def test_our_failures_are_never_the_clients(client: Client, seed: int, status: int, code: str) -> None:
    answer = client.chat(seed=seed)
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.headers["x-request-id"]
    check_schema("Error", answer.json)
    assert "scripted" not in answer.error["message"] or code == "engine_unavailable"
    assert client.chat(seed=1).status == 200


def test_a_failure_in_a_stream_is_its_last_event(client: Client) -> None:
    answer = client.chat(seed=7, stream=True)
    assert answer.status == 200
    assert answer.headers["x-request-id"]
    stream = payloads(answer.body)
    events = chat_events(stream)
    check_order("chat", events)
    assert events[-1] == "error"
    assert "finish" not in events
    last = stream[-1]
    assert not isinstance(last, str)
    check_schema("Error", last)
    assert last["error"]["code"] == "internal_error"


def test_token_ids_without_text_make_no_chunk(nano: Path) -> None:
    """An engine may end with ids whose text was held back and dropped."""

    class Trailing(RecordingEngine):
        def generate(
            self, request: GenerationRequest, cancelled: Callable[[], bool], queue_s: float
        ) -> Iterator[RequestEvent]:
            for event in super().generate(request, cancelled, queue_s):
                if isinstance(event, Finished):
                    yield Delta(request.id, "reasoning", "", (1, 2))
                yield event

    with serving(nano, Trailing(Script(plays=PLAYS)), MODEL) as client:
        assert message(client, 1)["content"] == "Hello"
