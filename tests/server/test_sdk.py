"""The official ``openai`` client against a live server: answers, streams and error classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from conformance.http.client import Client, read_until
from ninfer.engine.scripted import Play, Script, Step
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.inprocess import serving

PLAYS = {
    "1": Play((Step(text="why</think>\n\n"), Step(text="hel"), Step(text="lo"))),
    "2": Play((Step(fail="assertion"),)),
    "3": Play((Step(text="a"), Step(fail="assertion"))),
    "4": Play((Step(text="x", wait_s=0.02),), repeat=10**6),
}
ASK: Any = {"model": "nano", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def server(nano: Path) -> Iterator[Client]:
    limits = {"stream_comment_after_s": 0.1}
    with serving(nano, RecordingEngine(Script(plays=PLAYS)), MODEL, limits=limits) as client:
        yield client


@pytest.fixture(scope="module")
def sdk(server: Client) -> Iterator[openai.OpenAI]:
    base_url = f"{server.base_url}/v1"
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=30) as client:
        yield client


@pytest.mark.clause("HTTP-014")
def test_an_answer(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(**ASK, seed=1)
    message = answer.choices[0].message
    assert (message.content, answer.choices[0].finish_reason) == ("hello", "stop")
    assert message.model_extra == {"reasoning_content": "why"}
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 3
    assert answer._request_id


@pytest.mark.clause("HTTP-014")
def test_a_stream(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.create(
        **ASK, seed=1, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == "hello"
    assert chunks[-1].usage is not None
    assert chunks[-1].choices == []


def test_the_stream_helper(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(**ASK, seed=1) as stream:
        assert stream.get_final_completion().choices[0].message.content == "hello"


def test_models(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == ["nano"]
    assert sdk.models.retrieve("nano").id == "nano"


def test_error_classes(sdk: openai.OpenAI, server: Client) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.chat.completions.create(**ASK, temperature=3)
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    assert bad.value.request_id
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.chat.completions.create(**ASK | {"model": "other"})
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.InternalServerError) as internal:
        sdk.chat.completions.create(**ASK, seed=2)
    assert internal.value.code == "internal_error"


def test_an_error_inside_a_stream_is_raised(sdk: openai.OpenAI) -> None:
    stream = sdk.chat.completions.create(**ASK, seed=3, stream=True)
    with pytest.raises(openai.APIError, match="failed on this request"):
        list(stream)
    stream.close()


def test_overload_is_a_rate_limit(sdk: openai.OpenAI, server: Client) -> None:
    socks = [server.open_chat(seed=4, max_tokens=10**6, stream=True) for _ in range(17)]
    for sock in socks:
        read_until(sock, b"HTTP/1.1 200 OK")
    with pytest.raises(openai.RateLimitError) as full:
        sdk.chat.completions.create(**ASK)
    for sock in socks:
        sock.close()
    assert full.value.code == "server_overloaded"


def test_leaving_a_stream_cancels_it(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.create(**ASK, seed=4, stream=True, max_tokens=10**6) as stream:
        next(iter(stream))
    assert sdk.chat.completions.create(**ASK, seed=1).choices[0].message.content == "hello"
