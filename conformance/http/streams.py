"""Reads server-sent event streams and holds them against ``spec/http/streams.yaml``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from conformance.http.contract import document

Payload = Mapping[str, Any] | str
_STARTS = {"thinking": "start_thinking", "text": "start_text", "tool_use": "start_tool"}


def payloads(body: bytes) -> list[Payload]:
    """The data of each event: parsed JSON or the literal ``[DONE]``; comments are left out."""
    return [data if data == "[DONE]" else json.loads(data) for data in event_data(body)]


def event_data(body: bytes) -> Iterator[str]:
    """The data lines of a stream that must consist of whole unnamed events and comments only."""
    text = body.decode("utf-8")
    assert text.endswith("\n\n"), f"the stream ends inside an event: {text[-40:]!r}"
    for block in text.removesuffix("\n\n").split("\n\n"):
        if block.startswith(": "):
            assert block == ": " + document("http/transport")["stream_comment"]
            continue
        assert block.startswith("data: "), block
        assert "\n" not in block
        yield block.removeprefix("data: ")


def named_events(body: bytes) -> list[tuple[str, str]]:
    """Name and data of each event of a stream of whole named events and comments."""
    text = body.decode("utf-8")
    assert text.endswith("\n\n"), f"the stream ends inside an event: {text[-40:]!r}"
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        if block.startswith(": "):
            assert block == ": " + document("http/transport")["stream_comment"]
            continue
        name, _, data = block.partition("\n")
        assert name.startswith("event: "), block
        assert data.startswith("data: "), block
        assert "\n" not in data
        events.append((name.removeprefix("event: "), data.removeprefix("data: ")))
    return events


def named_payloads(body: bytes) -> list[Payload]:
    """The data of each event of a stream whose events carry the ``type`` in their data as their name."""
    text = body.decode("utf-8")
    assert text.endswith("\n\n"), f"the stream ends inside an event: {text[-40:]!r}"
    found: list[Payload] = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        if block == ": " + document("http/transport")["stream_comment"]:
            continue
        name, _, data = block.partition("\n")
        assert data.startswith("data: "), block
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}", block
        found.append(event)
    return found


def responses_events(stream: Sequence[Payload]) -> list[str]:
    """The names that ``streams.yaml`` gives the payloads of a Responses stream."""
    return [_responses_event(payload) for payload in stream]


def messages_events(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names that ``streams.yaml`` gives a Messages stream; indices of blocks count up without gaps."""
    names, opened = [], -1
    for event in events:
        name = event["type"]
        if name == "content_block_start":
            opened += 1
            names.append(_STARTS[event["content_block"]["type"]])
        else:
            names.append(event["delta"]["type"] if name == "content_block_delta" else name)
        if name.startswith("content_block"):
            assert event["index"] == opened
    return names


def chat_events(stream: Sequence[Payload]) -> list[str]:
    """The names that ``streams.yaml`` gives the payloads of a chat stream."""
    return [_chat_event(payload) for payload in stream]


def check_order(protocol: str, events: Sequence[str]) -> None:
    """Fails unless ``events`` is a path through the protocol's table from its start to an end."""
    table = document("http/streams")[protocol]
    state = table["start"]
    for index, event in enumerate(events):
        allowed = table["transitions"][state]
        assert event in allowed, f"{event} after {events[:index]} in state {state}"
        state = allowed[event]
    assert state in table["end"], f"the stream stops in state {state}: {events}"


def text_of(stream: Sequence[Payload], member: str = "content") -> str:
    """All deltas of one member, joined."""
    choices = [
        choice for chunk in stream if isinstance(chunk, Mapping) for choice in chunk.get("choices", ())
    ]
    return "".join(choice["delta"].get(member) or "" for choice in choices)


def _chat_event(payload: Payload) -> str:
    if payload == "[DONE]":
        return "done"
    assert isinstance(payload, Mapping)
    if "error" in payload:
        return "error"
    if not payload["choices"]:
        assert payload["usage"] is not None
        return "usage"
    (choice,) = payload["choices"]
    if "prompt_progress" in payload:
        assert choice["delta"] == {}
        return "progress"
    if payload.get("usage") is not None:
        assert choice["delta"] == {}
        return "usage"
    if choice["finish_reason"] is not None:
        assert choice["delta"] == {}
        return "finish"
    delta = choice["delta"]
    if "role" in delta:
        return "role"
    (member,) = delta
    assert delta[member] != ""
    return {"reasoning_content": "reasoning", "content": "content", "tool_calls": "tool_call"}[member]


def _responses_event(payload: Payload) -> str:
    assert isinstance(payload, Mapping)
    name: str = payload["type"].removeprefix("response.")
    about = payload.get("item") or payload.get("part")
    if about is None or name.startswith("reasoning_summary"):
        return name
    return f"{name}/{about['type']}"
