"""Faults that a server could make on a Responses answer, for ``FaultyClient``; how named events are spoilt.

Each changes answers as they arrive; where it finds nothing to spoil it leaves an answer alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from conformance.http.client import Answer
from conformance.http.wire_faults import Spoil

Event = dict[str, Any]
_END = b"\n\n"


def spoilt_events(change: Callable[[list[Event]], list[Event]]) -> Spoil:
    """Spoils the parsed events of a stream; each is sent under its ``name`` if it has one, else its type."""

    def spoil(answer: Answer) -> Answer:
        if not answer.body.startswith(b"event: "):
            return answer
        blocks = answer.body.removesuffix(_END).split(_END)
        events = [json.loads(block.partition(b"\ndata: ")[2]) for block in blocks]
        return replace(answer, body=b"".join(map(_encoded, change(events))))

    return spoil


def _encoded(event: Event) -> bytes:
    name = event.pop("name", event["type"])
    return f"event: {name}\ndata: ".encode() + json.dumps(event, ensure_ascii=False).encode() + _END


def each_event(change: Callable[[Event], None]) -> Spoil:
    """Spoils each event in place."""

    def spoilt(events: list[Event]) -> list[Event]:
        for event in events:
            change(event)
        return events

    return spoilt_events(spoilt)


def _without(kind: str) -> Spoil:
    """A stream without its first event of a type, the numbers closed up."""

    def spoilt(events: list[Event]) -> list[Event]:
        at = next((i for i, event in enumerate(events) if event["type"] == f"response.{kind}"), None)
        return events if at is None else _numbered([*events[:at], *events[at + 1 :]])

    return spoilt_events(spoilt)


def _twice(kind: str) -> Spoil:
    def spoilt(events: list[Event]) -> list[Event]:
        at = next((i for i, event in enumerate(events) if event["type"] == f"response.{kind}"), None)
        return events if at is None else _numbered([*events[: at + 1], dict(events[at]), *events[at + 1 :]])

    return spoilt_events(spoilt)


def _numbered(events: list[Event]) -> list[Event]:
    for number, event in enumerate(events):
        event["sequence_number"] = number
    return events


def _swapped(events: list[Event], first: int, second: int) -> list[Event]:
    if max(first, second) < len(events):
        events[first], events[second] = events[second], events[first]
    return _numbered(events)


def _done_mark(answer: Answer) -> Answer:
    if not answer.body.startswith(b"event: "):
        return answer
    return replace(answer, body=answer.body + b"data: [DONE]" + _END)


def _other_item_id(event: Event) -> None:
    if event["type"].endswith("_text.done"):
        event["item_id"] += "x"


def _shifted(event: Event) -> None:
    if "content_index" in event:
        event["output_index"] += 1


def _other_name(event: Event) -> None:
    if event["type"].endswith(".delta"):
        event["name"] = "message"


def _early_mirror(event: Event) -> None:
    if event["type"] == "response.output_item.added" and event["item"]["type"] == "reasoning":
        event["item"]["encrypted_content"] = "x"


def _padded(event: Event) -> None:
    if event["type"].endswith(".delta"):
        event["item_id"] = event["item_id"][:-1]


def _terminal(change: Callable[[Event], None]) -> Spoil:
    """Spoils the object in the terminal event, and whole answers alike."""

    def spoil(answer: Answer) -> Answer:
        if answer.body.startswith(b'{"id":"resp_'):
            value = answer.json
            change(value)
            return replace(answer, body=json.dumps(value, ensure_ascii=False).encode())

        def spoilt(events: list[Event]) -> list[Event]:
            if "response" in events[-1]:
                change(events[-1]["response"])
            return events

        return spoilt_events(spoilt)(answer)

    return spoil


def _whole(change: Callable[[Event], None]) -> Spoil:
    """Spoils whole answers only."""

    def spoil(answer: Answer) -> Answer:
        return _terminal(change)(answer) if answer.body.startswith(b'{"id":"resp_') else answer

    return spoil


def _cut_text(response: Event) -> None:
    for item in response["output"]:
        for part in item.get("content", ()):
            part["text"] = part["text"][:-1]


def _calls(change: Callable[[Event], None]) -> Callable[[Event], None]:
    def spoilt(response: Event) -> None:
        for item in response["output"]:
            if item["type"] == "function_call":
                change(item)

    return spoilt


def _sort_arguments(call: Event) -> None:
    call["arguments"] = json.dumps(json.loads(call["arguments"]), sort_keys=True, separators=(",", ":"))


def _join_names(call: Event) -> None:
    if "namespace" in call:
        call["name"] = call.pop("namespace") + "--" + call["name"]


def _invent_message(response: Event) -> None:
    if all(item["type"] != "message" for item in response["output"]):
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        empty = {
            "id": "msg_x",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [part],
        }
        response["output"].append(empty)


RESPONSES_FAULTS: Mapping[str, Spoil] = {
    # streams
    "an event under another name": each_event(_other_name),
    "a number left out": spoilt_events(lambda events: [*events[:3], *events[4:]]),
    "numbers from one": each_event(lambda event: event.update(sequence_number=event["sequence_number"] + 1)),
    "no created": _without("created"),
    "no in_progress": _without("in_progress"),
    "created behind in_progress": spoilt_events(lambda events: _swapped(events, 0, 1)),
    "the part before its Item": spoilt_events(lambda events: _swapped(events, 2, 3)),
    "a delta lost": _without("output_text.delta"),
    "a delta twice": _twice("output_text.delta"),
    "no end of text": _without("output_text.done"),
    "no end of a part": _without("content_part.done"),
    "no end of an Item": _without("output_item.done"),
    "an Item ends twice": _twice("output_item.done"),
    "a summary event lost": _without("reasoning_summary_text.done"),
    "no end of arguments": _without("function_call_arguments.done"),
    "no terminal event": spoilt_events(lambda events: events[:-1]),
    "two terminal events": spoilt_events(lambda events: _numbered([*events, dict(events[-1])])),
    "an end mark": _done_mark,
    "another Item in the middle": each_event(_other_item_id),
    "a delta of another Item": each_event(_padded),
    "places shifted": each_event(_shifted),
    "the mirror too early": each_event(_early_mirror),
    "text that its deltas do not make": _terminal(_cut_text),
    # objects
    "output_text at the top": _terminal(lambda response: response.update(output_text="x")),
    "another status": _whole(lambda response: response.update(status="incomplete")),
    "an end without a time": _whole(lambda response: response.update(completed_at=None)),
    "totals that do not add up": _terminal(lambda response: response["usage"].update(total_tokens=1)),
    "one token too many": _whole(
        lambda response: response["usage"].update(
            output_tokens=response["usage"]["output_tokens"] + 1,
            total_tokens=response["usage"]["total_tokens"] + 1,
        )
    ),
    "no reasoning details": _terminal(
        lambda response: response["usage"].pop("output_tokens_details") and None
    ),
    "an empty message": _whole(_invent_message),
    "calls with one id": _terminal(_calls(lambda call: call.update(call_id="call_0"))),
    "arguments sorted": _whole(_calls(_sort_arguments)),
    "names joined": _whole(_calls(_join_names)),
    "thinking lost": _whole(lambda response: response["output"].__delitem__(slice(0, 1))),
}
