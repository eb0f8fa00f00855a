"""The official ``openai`` client against a live server: answers, streams and error classes."""

from __future__ import annotations

import asyncio
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


# Every field of the contract that changes nothing or only the sampling, under the client's own names.
DOCUMENTED: Any = {
    "max_completion_tokens": 5, "temperature": 0.5, "top_p": 0.9, "presence_penalty": 0.1,
    "frequency_penalty": 0.1, "stop": ["never"], "n": 1, "logit_bias": {}, "logprobs": False,
    "modalities": ["text"], "response_format": {"type": "text"}, "reasoning_effort": "low", "store": False,
    "verbosity": "medium", "metadata": {"a": "b"}, "user": "u", "safety_identifier": "s",
    "service_tier": "auto", "prompt_cache_key": "k", "parallel_tool_calls": True, "seed": 1,
    "prediction": {"type": "content", "content": "x"}, "tool_choice": "auto",
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
    "extra_body": {
        "top_k": 5, "min_p": 0.1, "preserve_thinking": True, "timings_per_token": True,
        "return_progress": True, "chat_template_kwargs": {"preserve_thinking": True},
        "tool_constraints": "auto",
    },
}  # fmt: skip


@pytest.fixture
def asynchronous(server: Client) -> openai.AsyncOpenAI:
    base_url = f"{server.base_url}/v1"
    return openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=30)


def test_every_documented_field_passes_through_the_client(
    sdk: openai.OpenAI, asynchronous: openai.AsyncOpenAI
) -> None:
    whole = sdk.chat.completions.create(**ASK, **DOCUMENTED)
    assert whole.choices[0].message.content == "hello"
    assert whole.model_extra is not None
    assert whole.model_extra["timings"]["predicted_n"] == 3

    async def streamed() -> list[Any]:
        async with asynchronous as client:
            stream = await client.chat.completions.create(**ASK, **DOCUMENTED, stream=True)
            return [chunk async for chunk in stream]

    chunks = asyncio.run(streamed())
    assert [chunk.model_extra["prompt_progress"]["processed"] for chunk in chunks[1:3]] == [
        0,
        whole.usage.prompt_tokens,  # type: ignore[union-attr]
    ]
    texts = [chunk for chunk in chunks if chunk.choices[0].delta.content]
    assert "".join(chunk.choices[0].delta.content for chunk in texts) == "hello"
    assert all("timings" in chunk.model_extra for chunk in texts)


def test_the_asynchronous_client(asynchronous: openai.AsyncOpenAI) -> None:
    async def calls() -> None:
        async with asynchronous as client:
            create = client.chat.completions.create
            assert (await create(**ASK, seed=1)).choices[0].message.content == "hello"
            async with client.chat.completions.stream(**ASK, seed=1) as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].message.content == "hello"
            raw = await client.chat.completions.with_raw_response.create(**ASK, seed=1)
            assert raw.headers["x-request-id"]
            assert [model.id async for model in client.models.list()] == ["nano"]
            assert (await client.models.retrieve("nano")).id == "nano"
            with pytest.raises(openai.BadRequestError):
                await create(**ASK, temperature=3)
            with pytest.raises(openai.APIError, match="failed on this request"):
                async for _ in await create(**ASK, seed=3, stream=True):
                    pass

    asyncio.run(calls())


def test_the_clients_key_is_the_servers(nano: Path) -> None:
    with serving(nano, RecordingEngine(), (*MODEL, "--api-key", "local-secret")) as server:
        for key, kind in (("local-secret", None), ("other", openai.AuthenticationError)):
            base_url = f"{server.base_url}/v1"
            with openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=30) as client:
                if kind is None:
                    assert client.chat.completions.create(**ASK).choices
                    continue
                with pytest.raises(kind) as refused:
                    client.chat.completions.create(**ASK)
                assert refused.value.code == "invalid_api_key"


@pytest.mark.parametrize("part", ["text", "refusal"])
def test_an_answer_goes_back_as_history(sdk: openai.OpenAI, part: str) -> None:
    """What the client dumps of a message, nulls included, is a message."""
    message = sdk.chat.completions.create(**ASK, seed=1).choices[0].message
    history: Any = [*ASK["messages"], message.model_dump(), {"role": "user", "content": "more"}]
    if part == "refusal":
        history[1] |= {"content": None, "refusal": "no"}
    answer = sdk.chat.completions.create(model="nano", messages=history, seed=1)
    assert answer.choices[0].message.content == "hello"
