"""What answers are copied from behind HTTP: sources of tool results, and the indexes of held requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from ninfer import bundled
from ninfer.artifact import Artifact
from ninfer.engine.requests import GenerationRequest
from ninfer.prompt import Tokenizer
from ninfer.prompt import copy_sources as source_room
from ninfer.prompt.copy_sources import copy_sources
from ninfer.server.answer import exchange
from tests.fast.conftest import COLD_LIMIT_S, compiled  # noqa: F401  (kernels before any server)
from tests.server.drafting import Served, copying, essence, three_servers
from tests.server.fast_client import eventually

pytestmark = pytest.mark.timeout(COLD_LIMIT_S)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    with three_servers(tmp_path_factory) as started:
        yield started


FILE = [f"value_{index} = compute({index * 7}, 'name {index}')" for index in range(1, 13)]


def numbered(numbers: list[int]) -> str:
    return "\n".join(f"{number}: {line}" for number, line in zip(numbers, FILE, strict=False))


def continuing(shown: str, prefill: str) -> dict[str, Any]:
    """A request whose answer begins with ``prefill`` after a tool has shown a file."""
    return {
        "messages": [
            {"role": "user", "content": "Show me the file."},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "call_0", "type": "function", "function": {"name": "read", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "call_0", "content": shown},
            {"role": "assistant", "content": prefill},
        ],
        "enable_thinking": False,
        "temperature": 0,
        "max_tokens": 8,
    }


@pytest.mark.clause("NGRAM-026", "NGRAM-030", "NGRAM-034")
def test_numbered_lines_are_a_source_with_and_without_their_numbers(servers: dict[str, Served]) -> None:
    """The first rounds after a prefill show whether what comes next was found; it ends inside a line."""
    served = servers["copies"]
    bare, whole = "\n".join([*FILE[:3], "value_4 = compute("]), list(range(1, 13))

    def copies(shown: str, prefill: str) -> int:
        return int(served.speculative(served.ask(continuing(shown, prefill)))["ngram_rounds"])

    assert copies(numbered(whole), bare) > 0, "the bare file"
    assert copies(numbered(whole), numbered([1, 2, 3]) + "\n4: value_4 = compute(") > 0, "as it was shown"
    assert copies("\n".join(FILE), bare) > 0, "a file that has no numbers"
    assert copies(numbered([1, 2]), FILE[0] + "\nvalue_2 = compute(") == 0
    assert copies(numbered([1, 3, 4, 6, 8, 9, 11, 12]), bare) == 0


@pytest.mark.clause("NGRAM-033")
def test_sources_change_no_prompt_and_no_answer(servers: dict[str, Served]) -> None:
    body = continuing(numbered(list(range(1, 13))), FILE[0] + "\n") | {"max_tokens": 40}
    answers = [essence(served.ask(body)) for served in servers.values()]
    again = [essence(served.ask(body)) for served in servers.values()]
    assert answers[0] == answers[1] == answers[2]
    assert again[0] == again[1] == again[2], "cached tokens included"


@pytest.mark.clause("NGRAM-035")
def test_every_protocol_makes_the_same_sources(
    servers: dict[str, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, shown = servers["copies"], numbered(list(range(1, 13)))
    submitted: list[GenerationRequest] = []
    inner = served.host.submit

    def submit(request: GenerationRequest, sink: Any) -> None:
        submitted.append(request)
        inner(request, sink)

    monkeypatch.setattr(served.host, "submit", submit)
    model = served.client.get("/v1/models").json["data"][0]["id"]
    chat = continuing(shown, "")["messages"][:3]
    tools = {"name": "read", "description": "reads", "parameters": {"type": "object", "properties": {}}}
    served.ask({"messages": chat, "max_tokens": 2, "tools": [{"type": "function", "function": tools}]})
    used = {"type": "tool_use", "id": "toolu_0", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_0", "content": shown}
    messages = {
        "model": model,
        "max_tokens": 2,
        "tools": [{"name": "read", "input_schema": {"type": "object", "properties": {}}}],
        "messages": [
            {"role": "user", "content": "Show me the file."},
            {"role": "assistant", "content": [used]},
            {"role": "user", "content": [result]},
        ],
    }
    assert served.client.request("POST", "/v1/messages", messages).status == 200
    items = [
        {"role": "user", "content": "Show me the file."},
        {"type": "function_call", "call_id": "call_0", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_0", "output": shown},
    ]
    responses = {
        "model": model,
        "input": items,
        "max_output_tokens": 2,
        "tools": [{"type": "function", **tools}],
    }
    answer = served.client.request("POST", "/v1/responses", responses)
    assert answer.status == 200, answer.json
    assert len(submitted) == 3
    (source,) = submitted[0].copy_sources
    assert submitted[1].copy_sources == submitted[2].copy_sources == (source,)
    with Artifact.open(bundled.path()) as artifact:
        files = (artifact.resource("text", name) for name in ("tokenizer.json", "tokenizer_config.json"))
        tokenizer = Tokenizer.from_resources(*files)
    text = b"".join(map(tokenizer.token_bytes, np.frombuffer(source, "<i4").tolist())).decode()
    assert text == "\n".join(FILE)


@pytest.mark.clause("NGRAM-036")
def test_a_prompt_that_fills_the_context_has_no_source_but_an_answer(
    servers: dict[str, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = servers["copies"]
    submitted: list[GenerationRequest] = []
    inner = served.host.submit

    def submit(request: GenerationRequest, sink: Any) -> None:
        submitted.append(request)
        inner(request, sink)

    monkeypatch.setattr(served.host, "submit", submit)
    lines = 1
    while True:  # as many lines as fit
        body = continuing("\n".join(f"{n}: x" for n in range(1, lines + 1)), "x") | {"max_tokens": 1}
        answer = served.client.chat(**body)
        if answer.status != 200:
            break
        lines += 97
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    longest = len(submitted[-1].tokens) // 4
    sources = sum(len(source) // 4 for source in submitted[-1].copy_sources)
    assert longest + sources <= 2048
    assert longest > 1300


def test_waiting_requests_hold_their_index_and_give_it_back(servers: dict[str, Served]) -> None:
    served = servers["copies"]
    worker = served.host._worker
    served.host.program.going.clear()
    try:
        with ThreadPoolExecutor(6) as pool:
            answers = [pool.submit(served.ask, copying(20 + index, max_tokens=2)) for index in range(6)]
            eventually(
                lambda: served.host.submitted and len(worker._drafts) + len(worker._residents.active) == 6
            )
            drafts = [*worker._drafts.values(), *(a.draft for a in worker._residents.active.values())]
            sizes = [draft.index.bytes for draft in drafts if draft is not None and draft.index is not None]
            assert len(sizes) == 6
            assert all(0 < size <= 36 * 2**20 for size in sizes)
            served.host.program.going.set()
            for answer in answers:
                answer.result()
    finally:
        served.host.program.going.set()
    eventually(lambda: worker.idle)
    assert not worker._drafts
    assert not worker._residents.active


@pytest.mark.clause("NGRAM-037")
def test_a_client_that_leaves_ends_the_work_on_its_sources(
    servers: dict[str, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer is at its first piece when the client goes, and comes back from it to nothing."""
    served, pieces, ended = servers["copies"], [], threading.Event()

    def slow(conversation: Any, encode: Any, budget: int, cancelled: Any) -> tuple[Any, ...]:
        def one(texts: Any) -> Any:
            pieces.append(len(texts))
            if len(pieces) == 1:
                eventually(cancelled)
            return encode(texts)

        found = copy_sources(conversation, one, 10**9, cancelled)
        ended.set()
        return found

    monkeypatch.setattr(exchange, "copy_sources", slow)
    monkeypatch.setattr(source_room, "_STEP", 16)
    shown = "\n".join(f"{number}: x" for number in range(1, 250))
    body = continuing(shown, "x")
    sock = served.client.open_chat(stream=True, **body)
    eventually(lambda: pieces)
    sock.close()
    assert ended.wait(60)
    assert len(pieces) == 1, "it went on"
    monkeypatch.undo()
    assert served.ask(copying(14, max_tokens=2)).status == 200
