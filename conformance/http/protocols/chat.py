"""OpenAI Chat Completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conformance.http.protocols.outcome import Outcome, openai_request_id, openai_status
from conformance.http.schemas import check_schema
from conformance.http.streams import Payload, chat_events, check_order, payloads, text_of


class Chat:
    """See ``Protocol``."""

    path = "/v1/chat/completions"
    request_id_header = openai_request_id()

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
            asked if tool is None else {**asked, "tools": [{"type": "function", "function": {"name": tool}}]}
        )

    def playing(self, body: Mapping[str, Any], play: int) -> dict[str, Any]:
        return {**body, "seed": play}

    def streamed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {**body, "stream": True, "stream_options": {"include_usage": True}}

    def read_stream(self, body: bytes) -> list[Payload]:
        return payloads(body)

    def check_whole(self, value: Any) -> Outcome:
        check_schema("ChatCompletion", value)
        (choice,) = value["choices"]
        message = choice["message"]
        calls = message.get("tool_calls", [])
        _check_ids(calls)
        assert message["content"] is not None or calls, "content is null without tool calls"
        return _outcome(
            message.get("reasoning_content", ""),
            message["content"] or "",
            calls,
            choice["finish_reason"],
            value["usage"],
        )

    def check_stream(self, stream: Sequence[Payload]) -> tuple[list[str], Outcome]:
        events = chat_events(stream)
        check_order("chat", events)
        chunks = [chunk for chunk in stream if isinstance(chunk, Mapping)]
        for chunk in chunks:
            check_schema("Error" if "error" in chunk else "ChatChunk", chunk)
        assert "error" not in events, stream[-1]
        for member in ("id", "created", "model"):
            assert len({chunk[member] for chunk in chunks}) == 1, f"{member} changes in the stream"
        deltas = [choice for chunk in chunks for choice in chunk["choices"]]
        calls = [call for choice in deltas for call in choice["delta"].get("tool_calls", ())]
        assert [call["index"] for call in calls] == list(range(len(calls)))
        _check_ids(calls)
        (reason,) = [choice["finish_reason"] for choice in deltas if choice["finish_reason"] is not None]
        usage = next((chunk["usage"] for chunk in chunks if chunk.get("usage")), {})
        reasoning, content = (text_of(stream, member) for member in ("reasoning_content", "content"))
        return events, _outcome(reasoning, content, calls, reason, usage)

    def check_error(self, value: Any) -> tuple[str, str, str | None]:
        check_schema("Error", value)
        error = value["error"]
        return error["code"], error["message"], error["param"]

    def status_of(self, code: str) -> int:
        return openai_status(code)


def _check_ids(calls: Sequence[Mapping[str, Any]]) -> None:
    ids = [call["id"] for call in calls]
    assert len(set(ids)) == len(ids), f"ids of calls repeat: {ids}"


def _outcome(
    reasoning: str,
    content: str,
    calls: Sequence[Mapping[str, Any]],
    reason: str,
    usage: Mapping[str, Any],
) -> Outcome:
    if usage:
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return Outcome(
        reasoning,
        content,
        tuple((call["function"]["name"], call["function"]["arguments"]) for call in calls),
        reason,
        usage.get("prompt_tokens", 0),
        usage.get("completion_tokens", 0),
        usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0),
    )
