"""Cases of public reports about thinking, bytes, stops and usage, over plays that provoke them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Client
from conformance.http.schemas import check_answer, check_schema
from conformance.http.streams import chat_events, check_order, payloads, text_of
from ninfer.engine.scripted import Play, Script, Step
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.inprocess import serving


def texts(*pieces: str) -> Play:
    return Play(tuple(Step(text=piece) for piece in pieces))


def cut_bytes(text: str, size: int) -> Play:
    """A text as tokens of ``size`` bytes, characters cut wherever it falls."""
    data = text.encode()
    return Play(tuple(Step(hex=data[at : at + size].hex()) for at in range(0, len(data), size)))


PLAN = ["Plan.\n</think>\n\nHi"], ["Plan.", "\n", "</th", "ink>", "\n\n", "Hi"], list("Plan.\n</think>\n\nHi")
OTTER = ["The kelp sea otter"], ["The ke", "lp", " sea", " otter"], list("The kelp sea otter")
SEEDS: dict[str, Play] = {
    **{f"12{n}": texts(*pieces) for n, pieces in enumerate(PLAN)},
    "130": texts("Ha", "lf ", "a ", "pl", "an"),
    "160": Play((Step(hex="686920f09f"), Step(hex="988021"))),
    **{f"19{n}": texts(*pieces) for n, pieces in enumerate(OTTER)},
    "200": texts("weigh ", "7", ".2", " first</think>\n\n", "7.15 < 7.2"),
    "201": texts("weigh it</think>\n\n", "7.15 < ", "7", ".2", " so"),
    **{f"17{n:02}": cut_bytes("aé😀 b</think\n<tool"[:n] * 3, 1 + n % 4) for n in range(17)},
}


@pytest.fixture(scope="module")
def client(nano: Path) -> Iterator[Client]:
    with serving(nano, RecordingEngine(Script(plays=SEEDS)), MODEL) as client:
        yield client


def both(client: Client, seed: int, **members: Any) -> tuple[dict[str, Any], list[Any]]:
    """The choice of the whole answer, which the stream must equal, and the stream."""
    answer = client.chat(seed=seed, **members)
    assert answer.status == 200, answer.body
    check_answer("POST", "/v1/chat/completions", 200, answer.json)
    choice: dict[str, Any] = answer.json["choices"][0]
    stream = payloads(
        client.chat(seed=seed, stream=True, stream_options={"include_usage": True}, **members).body
    )
    check_order("chat", chat_events(stream))
    message = choice["message"]
    assert text_of(stream) == (message["content"] or "")
    assert text_of(stream, "reasoning_content") == message.get("reasoning_content", "")
    chunks = [chunk for chunk in stream if not isinstance(chunk, str)]
    (reason,) = {
        chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]
    } - {None}  # fmt: skip
    assert reason == choice["finish_reason"]
    assert chunks[-1]["usage"] == answer.json["usage"]
    return choice | {"usage": answer.json["usage"]}, chunks


@pytest.mark.parametrize("seed", [120, 121, 122])
def test_b12_only_the_close_is_generated(client: Client, seed: int) -> None:
    """The opener stands in the prompt; however the close is cut, it is in neither channel."""
    message = both(client, seed)[0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Plan.", "Hi")


def test_b13_cut_inside_thinking(client: Client) -> None:
    choice, _ = both(client, 130, max_tokens=4)
    assert choice["message"]["reasoning_content"] == "Half a pl"
    assert choice["message"]["content"] == ""
    assert choice["finish_reason"] == "length"
    usage = choice["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == usage["completion_tokens"] == 4


def test_b16_a_character_in_two_tokens(client: Client) -> None:
    choice, chunks = both(client, 160, enable_thinking=False)
    assert choice["message"]["content"] == "hi 😀!"
    assert "\ufffd" not in json.dumps(chunks, ensure_ascii=False)


@pytest.mark.parametrize("stop", [None, ["b</think\n<"], ["zz", "😀 b"]])
@pytest.mark.parametrize("thinking", [False, True])
def test_b17_the_tail_is_never_lost(client: Client, thinking: bool, stop: Sequence[str] | None) -> None:
    """Answers of any length whose ends look like the beginning of a stop, a close or a character."""
    for n in range(17):
        whole = "aé😀 b</think\n<tool"[:n] * 3
        cut = min((whole.find(s) for s in stop or () if s in whole), default=len(whole))
        message = both(client, 1700 + n, enable_thinking=thinking, stop=stop)[0]["message"]
        found = message.get("reasoning_content", "") if thinking else message["content"]
        assert found == whole[:cut]


@pytest.mark.parametrize("seed", [190, 191, 192])
def test_b19_a_stop_over_several_tokens(client: Client, seed: int) -> None:
    choice, _ = both(client, seed, stop=["lp sea"], enable_thinking=False)
    assert (choice["message"]["content"], choice["finish_reason"]) == ("The ke", "stop")


def test_b20_a_stop_in_reasoning_ends_there(client: Client) -> None:
    """The contract's choice: stops hold in both channels. No piece of a tag becomes content."""
    message = both(client, 200, stop=["7.2"])[0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("weigh ", "")
    message = both(client, 201, stop=["7.2"])[0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("weigh it", "7.15 < ")


@pytest.mark.parametrize("members", [{}, {"max_tokens": 2}, {"stop": "lp"}, {"max_tokens": 0}])
def test_b37_the_usage_chunk(client: Client, members: dict[str, Any]) -> None:
    _, chunks = both(client, 190, **members)
    assert [index for index, chunk in enumerate(chunks) if not chunk["choices"]] == [len(chunks) - 1]
    usage = chunks[-1]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    without = payloads(client.chat(seed=190, stream=True, **members).body)
    assert all(chunk["choices"] for chunk in without if not isinstance(chunk, str))


@pytest.mark.parametrize("stream", [False, True])
def test_b43_a_prompt_beyond_the_window_is_an_error_before_any_event(nano: Path, stream: bool) -> None:
    with serving(nano, RecordingEngine(), (*MODEL, "--max-context", "128")) as client:
        answer = client.chat(messages=[{"role": "user", "content": "7" * 500}], stream=stream)
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert answer.headers["content-type"] == "application/json"
    check_schema("Error", answer.json)


def test_b44h_silence_is_broken_and_late_errors_are_events(nano: Path) -> None:
    play = Play((Step(wait_s=0.5), Step(fail="assertion")))
    with serving(
        nano, RecordingEngine(Script(default=play)), MODEL, limits={"stream_comment_after_s": 0.1}
    ) as client:
        answer = client.chat(stream=True)
    assert answer.status == 200
    assert answer.body.count(b": keep-alive\n\n") >= 3
    assert chat_events(payloads(answer.body))[-1] == "error"
    assert b"[DONE]" not in answer.body
