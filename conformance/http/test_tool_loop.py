"""Two turns with a tool, as the ``openai`` client and its users go through them, on a model that calls."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from conformance.http.checks import ScriptedWorlds, World, check_case
from conformance.http.tool_cases import vector_cases

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "archive_stock",
            "description": "Archive the stock.",
            "parameters": {
                "type": "object",
                "properties": {
                    "sound_pipe": {"type": "boolean", "description": "The sound pipe setting."},
                    "item": {"type": "string", "description": "Name of an item."},
                },
                "required": ["sound_pipe", "item"],
            },
        },
    }
]
QUESTION: Any = {"role": "user", "content": "Archive the stock, please, sound_pipe yes with item glass."}
RESULT = '{"is_direct": true, "morning": 207, "paint": true}'
GREEDY: Any = {"temperature": 0, "max_tokens": 400}


@pytest.fixture
def world(request: pytest.FixtureRequest, rated: World | None) -> World:
    """The server at ``--base-url``, or the bundled model."""
    if rated is not None:
        return rated
    bundled: World = request.getfixturevalue("bundled")
    return bundled


def settings(world: World) -> Any:
    key = world.client.headers.get("authorization", "Bearer none").removeprefix("Bearer ")
    return {"base_url": f"{world.client.base_url}/v1", "api_key": key, "max_retries": 0, "timeout": 120}


def check_call(call: Any) -> None:
    """The declared tool, with arguments of the declared types."""
    assert call.function.name == "archive_stock"
    arguments = json.loads(call.function.arguments)
    assert isinstance(arguments["sound_pipe"], bool)
    assert isinstance(arguments["item"], str)


def results(calls: Any) -> list[Any]:
    return [{"role": "tool", "tool_call_id": call.id, "content": RESULT} for call in calls]


def test_whole_answers(world: World) -> None:
    with openai.OpenAI(**settings(world)) as client:
        create = client.chat.completions.create
        asked = create(model=world.model, messages=[QUESTION], tools=TOOLS, **GREEDY)
        message = asked.choices[0].message
        assert asked.choices[0].finish_reason == "tool_calls"
        assert message.tool_calls
        for call in message.tool_calls:
            check_call(call)
        turn: Any = message.model_dump(exclude_none=True)
        history = [QUESTION, turn, *results(message.tool_calls)]
        told = create(model=world.model, messages=history, tools=TOOLS, **GREEDY)
    assert told.choices[0].finish_reason == "stop"
    assert told.choices[0].message.content


def test_the_stream_helper_gives_the_whole_answer(world: World) -> None:
    with openai.OpenAI(**settings(world)) as client:
        asked = {"model": world.model, "messages": [QUESTION], "tools": TOOLS, **GREEDY}
        whole = client.chat.completions.create(**asked).choices[0].message
        with client.chat.completions.stream(**asked) as stream:
            streamed = stream.get_final_completion().choices[0].message
    assert streamed.tool_calls
    assert whole.tool_calls
    assert [call.function.arguments for call in streamed.tool_calls] == [
        call.function.arguments for call in whole.tool_calls
    ]
    assert (streamed.content or "") == (whole.content or "")


def test_streams_of_the_asynchronous_client(world: World) -> None:
    async def loop() -> str:
        async with openai.AsyncOpenAI(**settings(world)) as client:
            create = client.chat.completions.create
            names: list[str] = []
            arguments: list[str] = []
            ids: list[str] = []
            stream = await create(model=world.model, messages=[QUESTION], tools=TOOLS, stream=True, **GREEDY)
            async for chunk in stream:
                for delta in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
                    assert delta.index == len(names)
                    names.append(delta.function.name)
                    arguments.append(delta.function.arguments)
                    ids.append(delta.id)
            made = [
                {"id": i, "type": "function", "function": {"name": name, "arguments": text}}
                for i, name, text in zip(ids, names, arguments, strict=True)
            ]
            history: Any = [
                QUESTION,
                {"role": "assistant", "content": None, "tool_calls": made},
                *({"role": "tool", "tool_call_id": i, "content": RESULT} for i in ids),
            ]
            told = await create(model=world.model, messages=history, tools=TOOLS, **GREEDY)
            assert names == ["archive_stock"] * len(ids)
            return told.choices[0].message.content or ""

    assert asyncio.run(loop())


@pytest.mark.clause("EXEC-009")
def test_a_called_tool_is_not_executed(scripted: ScriptedWorlds) -> None:
    """Declarations lengthen the prompt; a call starts no process and opens no connection."""
    world = scripted(())
    assert world.pid is not None
    lengths = [
        world.client.chat(model=world.model, **members).json["usage"]["prompt_tokens"]
        for members in ({}, {"tools": TOOLS})
    ]
    assert lengths[0] < lengths[1]
    before = _processes(world.pid)
    check_case(world, next(case for case in vector_cases() if case.name == "two-calls-after-text"))
    assert _processes(world.pid) == before
    assert _own_connections(before, int(world.client.base_url.rsplit(":", 1)[1])) == []


def _processes(pid: int) -> list[int]:
    found = [pid]
    for process in found:
        for task in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return sorted(found)


def _own_connections(processes: list[int], port: int) -> list[str]:
    """TCP sockets of these processes that are neither the listening one nor a client's."""
    inodes = set()
    for process in processes:
        for entry in Path(f"/proc/{process}/fd").iterdir():
            target = str(entry.readlink())
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    rows = Path(f"/proc/{processes[0]}/net/tcp").read_text().splitlines()[1:]
    return [row for row in rows if row.split()[9] in inodes and not row.split()[1].endswith(f":{port:04X}")]
