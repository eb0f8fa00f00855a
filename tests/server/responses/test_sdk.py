"""The official ``openai`` client, sync and async: answers, streams, continuation, tools and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from ninfer.engine.scripted import Step
from tests.server.responses.stage import THINKING, Stage
from tests.server.responses.test_tools import FUNCTION, called, say_calls

ASK: Any = {"model": "nano", "instructions": "Be brief.", "input": "hi", "max_output_tokens": 128}
TOOLS: Any = [FUNCTION]


@pytest.fixture(scope="module")
def sdk(shared_stage: Stage) -> Iterator[openai.OpenAI]:
    base_url = f"{shared_stage.client.base_url}/v1"
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=30) as client:
        yield client


def asynchronous(stage: Stage) -> openai.AsyncOpenAI:
    base_url = f"{stage.client.base_url}/v1"
    return openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=30)


@pytest.mark.clause("RESP-003")
def test_an_answer(stage: Stage, sdk: openai.OpenAI) -> None:
    response = sdk.responses.create(**ASK, reasoning={"summary": "auto"})
    assert response.output_text == "Hello"
    assert (response.status, response.object) == ("completed", "response")
    reasoning, message = response.output
    assert (reasoning.type, message.type) == ("reasoning", "message")
    assert response.usage is not None
    assert response.usage.output_tokens == len(THINKING)
    assert response.usage.output_tokens_details.reasoning_tokens == 3
    assert response._request_id


def test_a_stream(stage: Stage, sdk: openai.OpenAI) -> None:
    events = list(sdk.responses.create(**ASK, stream=True))
    assert events[0].type == "response.created"
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == "Hello"
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Hello"


def test_the_stream_helper(stage: Stage, sdk: openai.OpenAI) -> None:
    with sdk.responses.stream(**ASK, reasoning={"summary": "auto"}) as stream:
        kinds = {event.type for event in stream}
        response = stream.get_final_response()
    assert response.output_text == "Hello"
    assert "response.reasoning_summary_text.delta" in kinds


def test_a_conversation(stage: Stage, sdk: openai.OpenAI) -> None:
    first = sdk.responses.create(**ASK)
    second = sdk.responses.create(model="nano", input="and?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert sdk.responses.retrieve(second.id).output_text == "Hello"
    items = sdk.responses.input_items.list(second.id, order="asc").data
    assert [item.type for item in items] == ["message"]
    user: Any = {"role": "user", "content": "hi"}
    replayed: Any = [user, *[item.to_dict() for item in first.output], user]
    told = sdk.responses.create(model="nano", input=replayed)
    assert told.output_text == "Hello"
    sdk.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(first.id)
    assert sdk.responses.input_tokens.count(model="nano", input="hi").input_tokens > 0


def test_a_tool_loop(stage: Stage, sdk: openai.OpenAI) -> None:
    say_calls(stage, called("get_weather", city="Bonn"))
    with sdk.responses.stream(**ASK, tools=TOOLS) as stream:
        first = stream.get_final_response()
    call = first.output[-1]
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("get_weather", '{"city":"Bonn"}')
    stage.say("</think>\n\n", "Sunny.")
    answer: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    second = sdk.responses.create(model="nano", input=[answer], previous_response_id=first.id, tools=TOOLS)
    assert second.output_text == "Sunny."


def test_error_classes(stage: Stage, sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.responses.create(**ASK, temperature=3)
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    assert bad.value.request_id
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.responses.retrieve("resp_none")
    assert missing.value.code == "response_not_found"
    for refused in (lambda: sdk.responses.cancel("resp_x"), lambda: sdk.responses.compact(model="nano")):
        with pytest.raises(openai.BadRequestError, match="does not provide"):
            refused()
    stage.say(Step(fail="assertion"))
    with pytest.raises(openai.InternalServerError):
        sdk.responses.create(**ASK)
    stage.say("a</think>\n\n", "b", Step(fail="assertion"))
    with sdk.responses.create(**ASK, stream=True) as stream:
        last = list(stream)[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None


def test_the_asynchronous_client(stage: Stage) -> None:
    async def run() -> None:
        async with asynchronous(stage) as sdk:
            first = await sdk.responses.create(**ASK)
            assert first.output_text == "Hello"
            stream = await sdk.responses.create(**ASK, stream=True, previous_response_id=first.id)
            events = [event async for event in stream]
            assert events[-1].type == "response.completed"
            async with sdk.responses.stream(**ASK) as helper:
                assert (await helper.get_final_response()).output_text == "Hello"
            answers = await asyncio.gather(*[sdk.responses.create(**ASK) for _ in range(5)])
            assert len({answer.id for answer in answers}) == 5
            say_calls(stage, called("get_weather", city="Bonn"))
            called_first = await sdk.responses.create(**ASK, tools=TOOLS)
            call = called_first.output[-1]
            assert call.type == "function_call"
            stage.say("</think>\n\n", "Sunny.")
            result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
            answer = await sdk.responses.create(
                model="nano", input=[result], previous_response_id=called_first.id, tools=TOOLS
            )
            assert answer.output_text == "Sunny."

    asyncio.run(run())
