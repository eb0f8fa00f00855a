"""Bodies and calls of the Messages routes, for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from conformance.http.client import Answer, Client
from conformance.http.schemas import check_answer, check_schema
from conformance.http.streams import check_order, named_events

Block = dict[str, Any]


def user(content: Any) -> Block:
    return {"role": "user", "content": content}


def assistant(content: Any) -> Block:
    return {"role": "assistant", "content": content}


def text(value: str, **members: Any) -> Block:
    return {"type": "text", "text": value} | members


def thinking(value: str, signature: str = "s") -> Block:
    return {"type": "thinking", "thinking": value, "signature": signature}


def tool_use(call_id: str, name: str = "f", **arguments: Any) -> Block:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def tool_result(call_id: str, content: Any = "r", **members: Any) -> Block:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content} | members


def tool(name: str = "f", **members: Any) -> Block:
    return {"name": name, "description": "does it", "input_schema": {"type": "object"}} | members


def body(*messages: Block, **members: Any) -> Block:
    """A body of these messages, or of one user message."""
    return {"model": "any label", "max_tokens": 64, "messages": list(messages) or [user("hi")]} | members


def ask(client: Client, *messages: Block, **members: Any) -> Answer:
    """``POST /v1/messages``; the answer is held against the document."""
    answer = client.request("POST", "/v1/messages", body(*messages, **members))
    check_answer("POST", "/v1/messages", answer.status, answer.json)
    return answer


def count(client: Client, *messages: Block, **members: Any) -> int:
    """The tokens that ``count_tokens`` finds."""
    answer = client.request("POST", "/v1/messages/count_tokens", body(*messages, **members))
    assert answer.status == 200, answer.body
    check_answer("POST", "/v1/messages/count_tokens", 200, answer.json)
    return int(answer.json["input_tokens"])


def refused(client: Client, *messages: Block, **members: Any) -> Mapping[str, Any]:
    """The error of a body that is refused, by both routes alike."""
    answer = ask(client, *messages, **members)
    assert answer.status == 400, answer.body
    assert answer.error["type"] == "invalid_request_error"
    return answer.error


def streamed(client: Client, *messages: Block, **members: Any) -> Sequence[tuple[str, Any]]:
    """The events of a stream, whose order and shapes are checked."""
    answer = client.request("POST", "/v1/messages", body(*messages, stream=True, **members))
    assert answer.status == 200, answer.body
    events = [(name, json.loads(data)) for name, data in named_events(answer.body)]
    for name, data in events:
        assert data["type"] == name
        check_schema("MessageEvent", data)
    check_order("messages", order(events))
    return events


def order(events: Sequence[tuple[str, Any]]) -> list[str]:
    """The names that ``streams.yaml`` gives the events; indices are checked to count up without gaps."""
    kinds = {"thinking": "start_thinking", "text": "start_text", "tool_use": "start_tool"}
    names, opened = [], -1
    for name, data in events:
        if name == "content_block_start":
            opened += 1
            names.append(kinds[data["content_block"]["type"]])
        elif name == "content_block_delta":
            names.append(data["delta"]["type"])
        else:
            names.append(name)
        if name.startswith("content_block"):
            assert data["index"] == opened
    return names


def deltas(events: Sequence[tuple[str, Any]], kind: str) -> str:
    """All deltas of one kind, joined."""
    member = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
    name = member.get(kind, "partial_json")
    return "".join(
        data["delta"][name]
        for event, data in events
        if event == "content_block_delta" and data["delta"]["type"] == kind
    )
