"""Anthropic Messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from conformance.http.contract import document
from conformance.http.protocols.outcome import Outcome, openai_status
from conformance.http.schemas import check_schema
from conformance.http.streams import Payload, check_order, messages_events, named_payloads

_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class Messages:
    """See ``Protocol``. The reason of an outcome is the stop reason; inputs are compared as JSON values."""

    path = "/v1/messages"
    request_id_header = "request-id"

    def body(self, model: str, members: Mapping[str, Any]) -> dict[str, Any]:
        small = {
            "model": model,
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 8,
            "temperature": 0,
        }
        return small | dict(members)

    def question(self, text: str, limit: int, tool: str | None) -> dict[str, Any]:
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "max_tokens": limit}
        return (
            asked
            if tool is None
            else {**asked, "tools": [{"name": tool, "input_schema": {"type": "object"}}]}
        )

    def playing(self, body: Mapping[str, Any], play: int) -> dict[str, Any]:
        return {**body, "seed": play}

    def streamed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {**body, "stream": True}

    def read_stream(self, body: bytes) -> list[Payload]:
        return named_payloads(body)

    def check_whole(self, value: Any) -> Outcome:
        check_schema("Message", value)
        return _outcome(value["content"], value["stop_reason"], value["stop_sequence"], value["usage"])

    def check_stream(self, stream: Sequence[Payload]) -> tuple[list[str], Outcome]:
        events = [event for event in stream if isinstance(event, Mapping)]
        for event in events:
            check_schema("MessageEvent", event)
        names = messages_events(events)
        check_order("messages", names)
        assert "error" not in names, events[-1]
        begun, ended = events[0]["message"], events[-2]
        assert (begun["content"], begun["stop_reason"]) == ([], None)
        # What the prompt cost is known when the stream begins.
        counts = ("input_tokens", "cache_read_input_tokens")
        assert [begun["usage"][name] for name in counts] == [ended["usage"][name] for name in counts]
        delta = ended["delta"]
        return names, _outcome(_blocks(events), delta["stop_reason"], delta["stop_sequence"], ended["usage"])

    def check_error(self, value: Any) -> tuple[str, str, str | None]:
        check_schema("MessagesError", value)
        error = value["error"]
        status = self.status_of(error["code"])
        kinds = document("http/messages")["error_types"]
        assert error["type"] == kinds["by_status"].get(str(status), kinds["default"])
        return error["code"], error["message"], None

    def status_of(self, code: str) -> int:
        own: Mapping[str, int] = document("http/messages")["error_statuses"]
        return own.get(code) or openai_status(code)


def _blocks(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The blocks that a stream builds; an input comes as pieces of JSON."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]) | {"partial_json": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            name = _DELTAS.get(delta["type"], "partial_json")
            blocks[event["index"]][name] += delta[name]
    for block in blocks:
        pieces = block.pop("partial_json")
        if block["type"] == "tool_use":
            assert block["input"] == {}
            block["input"] = json.loads(pieces or "{}")
    return blocks


def _outcome(
    blocks: Sequence[Mapping[str, Any]], reason: str, stop: str | None, usage: Mapping[str, Any]
) -> Outcome:
    assert (stop is not None) == (reason == "stop_sequence")
    calls = [block for block in blocks if block["type"] == "tool_use"]
    ids = [call["id"] for call in calls]
    assert len(set(ids)) == len(ids), f"ids of calls repeat: {ids}"
    return Outcome(
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        tuple(
            (call["name"], json.dumps(call["input"], separators=(",", ":"), ensure_ascii=False))
            for call in calls
        ),
        reason,
        usage["input_tokens"] + usage["cache_read_input_tokens"],
        usage["output_tokens"],
        0,
    )
