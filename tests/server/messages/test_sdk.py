"""The official ``anthropic`` client, sync and async, against a live server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from conformance.http.client import Client
from ninfer.engine.scripted import Play, Script, Step
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine
from tests.server.inprocess import serving

CALL = "<tool_call>\n<function=add>\n<parameter=a>\n17\n</parameter>\n</function>\n</tool_call>"
PLAYS = {
    "1": Play((Step(text="why</think>\n\n"), Step(text="hel"), Step(text="lo"))),
    "2": Play((Step(fail="assertion"),)),
    "3": Play((Step(text="a"), Step(fail="assertion"))),
}
TOOL: Any = {"name": "add", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
ASK: Any = {"model": "claude", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def server(nano: Path) -> Iterator[Client]:
    with serving(nano, RecordingEngine(Script(plays=PLAYS)), MODEL) as client:
        yield client


@pytest.fixture(scope="module")
def sdk(server: Client) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.base_url, api_key="none", max_retries=0, timeout=30) as client:
        yield client


def seeded(number: int) -> Any:
    return {"extra_body": {"seed": number}}


@pytest.mark.clause("HTTP-013")
def test_a_message(sdk: anthropic.Anthropic) -> None:
    message = sdk.messages.create(**ASK, **seeded(1))
    shown, said = message.content
    assert (shown.type, said.type) == ("thinking", "text")
    assert (shown.thinking, said.text) == ("why", "hello")
    assert message.stop_reason == "end_turn"
    assert message.usage.cache_creation_input_tokens is None
    assert message._request_id


def test_a_stream(sdk: anthropic.Anthropic) -> None:
    with sdk.messages.stream(**ASK, **seeded(1)) as stream:
        assert "".join(stream.text_stream) == "hello"
        final = stream.get_final_message()
    whole = sdk.messages.create(**ASK, **seeded(1))
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.stop_reason == "end_turn"


def test_counting(sdk: anthropic.Anthropic) -> None:
    counted = sdk.messages.count_tokens(model="claude", messages=ASK["messages"], tools=[TOOL])
    assert counted.input_tokens > 0


def test_error_classes(sdk: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as bad:
        sdk.messages.create(**ASK | {"max_tokens": 0})
    assert bad.value.request_id
    with pytest.raises(anthropic.InternalServerError):
        sdk.messages.create(**ASK, **seeded(2))
    with (
        pytest.raises(anthropic.APIStatusError, match="failed"),
        sdk.messages.stream(**ASK | {"thinking": {"type": "disabled"}}, **seeded(3)) as stream,
    ):
        stream.until_done()


def test_async(server: Client) -> None:
    async def run() -> tuple[str, str]:
        async with anthropic.AsyncAnthropic(
            base_url=server.base_url, api_key="none", max_retries=0, timeout=30
        ) as client:
            message = await client.messages.create(**ASK, **seeded(1))
            async with client.messages.stream(**ASK, **seeded(1)) as stream:
                streamed = "".join([text async for text in stream.text_stream])
        last: Any = message.content[-1]
        return last.text, streamed

    assert asyncio.run(run()) == ("hello", "hello")


def test_a_tool_loop(nano: Path) -> None:
    """The SDK's own tool runner: a call, its result, an answer."""
    script = Script(default=Play((Step(text=CALL),)))
    engine = RecordingEngine(script)
    added: list[int] = []

    @anthropic.beta_tool
    def add(a: int) -> str:
        """Adds 25.

        Args:
            a: a number
        """
        added.append(a)
        engine._script = Script(default=Play((Step(text="It is 42."),)))
        return str(a + 25)

    with (
        serving(nano, engine, MODEL) as server,
        anthropic.Anthropic(base_url=server.base_url, api_key="none", max_retries=0, timeout=30) as sdk,
    ):
        runner = sdk.beta.messages.tool_runner(
            model="claude",
            max_tokens=64,
            tools=[add],
            messages=[{"role": "user", "content": "17 and 25"}],
            thinking={"type": "disabled"},
        )
        final = runner.until_done()
    assert added == [17]
    last: Any = final.content[-1]
    assert last.text == "It is 42."
