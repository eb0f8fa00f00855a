"""Faults that a server could make on a Messages answer, for ``FaultyClient``.

Each changes answers as they arrive; where it finds nothing to spoil it leaves an answer alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from conformance.http.client import Answer
from conformance.http.responses_faults import Event, each_event, spoilt_events
from conformance.http.wire_faults import Spoil


def _without(kind: str, delta: str = "") -> Spoil:
    """A stream without its first event of a type."""
    return spoilt_events(lambda events: [e for i, e in enumerate(events) if i != _first(events, kind, delta)])


def _twice(kind: str, delta: str = "") -> Spoil:
    def spoilt(events: list[Event]) -> list[Event]:
        at = _first(events, kind, delta)
        return events if at is None else [*events[: at + 1], dict(events[at]), *events[at + 1 :]]

    return spoilt_events(spoilt)


def _first(events: list[Event], kind: str, delta: str) -> int | None:
    for index, event in enumerate(events):
        if event["type"] == kind and (not delta or event["delta"]["type"] == delta):
            return index
    return None


def _swapped(events: list[Event], first: int, second: int) -> list[Event]:
    if len(events) > 4:
        events[first], events[second] = events[second], events[first]
    return events


def _whole(change: Callable[[dict[str, Any]], None]) -> Spoil:
    """Spoils a whole answer's object in place."""

    def spoil(answer: Answer) -> Answer:
        if not answer.body.startswith(b"{") or answer.json.get("type") != "message":
            return answer
        value = answer.json
        change(value)
        return replace(answer, body=json.dumps(value, ensure_ascii=False).encode())

    return spoil


def _in_delta(kind: str, change: Callable[[dict[str, Any]], None]) -> Spoil:
    def spoilt(event: Event) -> None:
        if event["type"] == "content_block_delta" and event["delta"]["type"] == kind:
            change(event["delta"])

    return each_event(spoilt)


def _count_twice(event: Event) -> None:
    if event["type"] == "message_start":
        event["message"]["usage"]["input_tokens"] += 1


def _shift(event: Event) -> None:
    if "index" in event:
        event["index"] += 1


def _early_input(event: Event) -> None:
    if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
        event["content_block"]["input"] = {"early": 1}


def _other_reason(event: Event) -> None:
    if event["type"] == "message_delta":
        event["delta"]["stop_reason"] = "max_tokens"


def _sorted_input(value: dict[str, Any]) -> None:
    for block in value["content"]:
        if block["type"] == "tool_use":
            block["input"] = dict(sorted(block["input"].items()))


def _other_kind(answer: Answer) -> Answer:
    if answer.status < 400:
        return answer
    value = answer.json
    value["error"]["type"] = "overloaded_error"
    return replace(answer, body=json.dumps(value).encode())


MESSAGES_FAULTS: Mapping[str, Spoil] = {
    "two events swapped": spoilt_events(lambda events: _swapped(events, 1, 2)),
    "the end before the last block's": spoilt_events(lambda events: _swapped(events, -3, -2)),
    "no message_start": _without("message_start"),
    "no message_delta": _without("message_delta"),
    "no message_stop": _without("message_stop"),
    "message_stop twice": _twice("message_stop"),
    "a block that does not open": _without("content_block_start"),
    "a block that does not close": _without("content_block_stop"),
    "a block that closes twice": _twice("content_block_stop"),
    "no signature": _without("content_block_delta", "signature_delta"),
    "a text lost": _without("content_block_delta", "text_delta"),
    "a text twice": _twice("content_block_delta", "text_delta"),
    "a thought lost": _without("content_block_delta", "thinking_delta"),
    "an input lost": _without("content_block_delta", "input_json_delta"),
    "an empty text": _in_delta("text_delta", lambda delta: delta.update(text="")),
    "half an input": _in_delta("input_json_delta", lambda delta: delta.update(partial_json='{"days":')),
    "blocks counted from one": each_event(_shift),
    "an input before its deltas": each_event(_early_input),
    "another prompt length at the start": each_event(_count_twice),
    "another stop reason": each_event(_other_reason),
    "another name of an event": each_event(lambda event: event.update(name="message")),
    "an unknown member": each_event(lambda event: event.update(extra=1)),
    "an end mark": lambda answer: (
        replace(answer, body=answer.body + b"data: [DONE]\n\n")
        if answer.body.startswith(b"event: ")
        else answer
    ),
    "input members sorted": _whole(_sorted_input),
    "a stop sequence that did not stop": _whole(lambda value: value.update(stop_sequence="x")),
    "no usage": _whole(lambda value: value.pop("usage") and None),
    "another category of error": _other_kind,
}
