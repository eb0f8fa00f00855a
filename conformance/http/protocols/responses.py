"""OpenAI Responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conformance.http.protocols.outcome import Outcome, openai_request_id, openai_status
from conformance.http.schemas import check_schema
from conformance.http.streams import Payload, check_order, named_payloads, responses_events

_TERMINAL = ("response.completed", "response.incomplete")


class Responses:
    """See ``Protocol``. The reason of an outcome is the Response's status."""

    path = "/v1/responses"
    request_id_header = openai_request_id()

    def body(self, model: str, members: Mapping[str, Any]) -> dict[str, Any]:
        small = {"model": model, "input": "hi", "max_output_tokens": 8, "temperature": 0}
        return small | dict(members)

    def question(self, text: str, limit: int, tool: str | None) -> dict[str, Any]:
        asked = {"input": text, "max_output_tokens": limit, "store": False}
        return asked if tool is None else {**asked, "tools": [{"type": "function", "name": tool}]}

    def playing(self, body: Mapping[str, Any], play: int) -> dict[str, Any]:
        return {**body, "max_output_tokens": play}

    def streamed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {**body, "stream": True}

    def read_stream(self, body: bytes) -> list[Payload]:
        return named_payloads(body)

    def check_whole(self, value: Any) -> Outcome:
        check_schema("Response", value)
        return _outcome(value)

    def check_stream(self, stream: Sequence[Payload]) -> tuple[list[str], Outcome]:
        names = responses_events(stream)
        check_order("responses", names)
        events = [event for event in stream if isinstance(event, Mapping)]
        for event in events:
            check_schema("ResponsesEvent", event)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] in _TERMINAL, events[-1]
        response = events[-1]["response"]
        assert {event["response"]["id"] for event in events if "response" in event} == {response["id"]}
        for index, item in enumerate(response["output"]):
            _check_item(item, [event for event in events if event.get("output_index") == index])
        return names, _outcome(response)

    def check_error(self, value: Any) -> tuple[str, str, str | None]:
        check_schema("Error", value)
        error = value["error"]
        return error["code"], error["message"], error["param"]

    def status_of(self, code: str) -> int:
        return openai_status(code)


def _check_item(item: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> None:
    """The events of one Item name it, and their deltas are its text."""
    assert {event.get("item_id") or event["item"]["id"] for event in events} == {item["id"]}
    assert events[-1]["item"] == item
    # Announced as it will be, but for what the model has not said yet.
    unsaid = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
    known = {name: value for name, value in item.items() if name != "encrypted_content"}
    assert events[0]["item"] == {**known, "status": "in_progress"} | unsaid
    deltas = "".join(event["delta"] for event in events if "delta" in event and "summary_index" not in event)
    assert deltas == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])


def _outcome(response: Mapping[str, Any]) -> Outcome:
    usage, output = response["usage"], response["output"]
    assert (response["completed_at"] is None) == (response["status"] != "completed")
    assert (response["incomplete_details"] is None) == (response["status"] != "incomplete")
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert all(part["text"] for item in output for part in item.get("content", ())), "an Item without text"
    calls = [item for item in output if item["type"] == "function_call"]
    ids = [name for item in calls for name in (item["id"], item["call_id"])]
    assert len(set(ids)) == len(ids), f"ids of calls repeat: {ids}"
    return Outcome(
        _text(output, "reasoning"),
        _text(output, "message"),
        tuple((_name(call), call["arguments"]) for call in calls),
        response["status"],
        usage["input_tokens"],
        usage["output_tokens"],
        usage["output_tokens_details"]["reasoning_tokens"],
    )


def _text(output: Sequence[Mapping[str, Any]], kind: str) -> str:
    return "".join(item["content"][0]["text"] for item in output if item["type"] == kind)


def _name(call: Mapping[str, Any]) -> str:
    """A function of a namespace is shown behind it."""
    namespace = call.get("namespace")
    name: str = call["name"]
    return name if namespace is None else f"{namespace}.{name}"
