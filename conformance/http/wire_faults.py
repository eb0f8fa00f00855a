"""Faults that a server could make on the wire, planted between a good server and the checks.

Each changes answers as they arrive; where it finds nothing to spoil it leaves an answer alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from conformance.http.client import Answer, Client

Spoil = Callable[[Answer], Answer]
_END = b"\n\n"
_DONE = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class FaultyClient(Client):
    """A client whose answers are spoilt; ``spoilt`` counts those that were changed."""

    spoil: Spoil = field(default=lambda answer: answer)
    spoilt: list[int] = field(default_factory=list)

    def request(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        good = Client(self.base_url, self.timeout_s, self.headers).request(method, path, body, headers)
        bad = self.spoil(good)
        if bad != good:
            self.spoilt.append(good.status)
        return bad


def _stream(change: Callable[[list[bytes]], list[bytes]]) -> Spoil:
    """Spoils the events of a stream."""

    def spoil(answer: Answer) -> Answer:
        if not answer.body.endswith(_END) or b"data: " not in answer.body:
            return answer
        events = answer.body.removesuffix(_END).split(_END)
        return replace(answer, body=_END.join(change(events)) + _END)

    return spoil


def _chunks(change: Callable[[dict[str, Any], int], None]) -> Spoil:
    """Spoils each JSON chunk of a stream in place; the number counts them."""

    def spoilt(events: list[bytes]) -> list[bytes]:
        return [
            event if event == _DONE or not event.startswith(b"data: ") else _changed(event, change, number)
            for number, event in enumerate(events)
        ]

    return _stream(spoilt)


def _changed(event: bytes, change: Callable[[dict[str, Any], int], None], number: int) -> bytes:
    chunk = json.loads(event.removeprefix(b"data: "))
    change(chunk, number)
    return b"data: " + json.dumps(chunk, ensure_ascii=False).encode()


def _whole(change: Callable[[dict[str, Any]], None]) -> Spoil:
    """Spoils a whole answer's object in place."""

    def spoil(answer: Answer) -> Answer:
        if not answer.body.startswith(b'{"id":"chatcmpl-'):
            return answer
        value = answer.json
        change(value)
        return replace(answer, body=json.dumps(value, ensure_ascii=False).encode())

    return spoil


def _error(change: Callable[[dict[str, Any]], None]) -> Spoil:
    def spoil(answer: Answer) -> Answer:
        if answer.status < 400 or not answer.body.startswith(b'{"error"'):
            return answer
        value = answer.json
        change(value)
        return replace(answer, body=json.dumps(value).encode())

    return spoil


def _delta(chunk: Mapping[str, Any]) -> dict[str, Any]:
    delta: dict[str, Any] = chunk["choices"][0]["delta"] if chunk.get("choices") else {}
    return delta


def _swap(events: list[bytes], first: int, second: int) -> list[bytes]:
    if len(events) <= max(first, second):
        return events
    events[first], events[second] = events[second], events[first]
    return events


def _deltas(events: list[bytes]) -> Iterator[int]:
    """The places of text deltas."""
    for index, event in enumerate(events):
        if b'"delta":{"content":"' in event and b'"role"' not in event:
            yield index


def _without(events: list[bytes], index: int | None) -> list[bytes]:
    return events if index is None else [*events[:index], *events[index + 1 :]]


def _lose_byte(answer: Answer, place: bytes) -> Answer:
    at = answer.body.find(place)
    return answer if at < 0 else replace(answer, body=answer.body[:at] + answer.body[at + 1 :])


def _rename_channel(chunk: dict[str, Any], number: int) -> None:
    delta = _delta(chunk)
    if "reasoning_content" in delta:
        delta["content"] = delta.pop("reasoning_content")


def _shift_index(chunk: dict[str, Any], number: int) -> None:
    for call in _delta(chunk).get("tool_calls", ()):
        call["index"] += 1


def _count_one_more(chunk: dict[str, Any], number: int) -> None:
    if chunk.get("usage"):
        chunk["usage"]["completion_tokens"] += 1
        chunk["usage"]["total_tokens"] += 1


def _another_id(chunk: dict[str, Any], number: int) -> None:
    if number == 2:
        chunk["id"] += "x"


def _sort_arguments(value: dict[str, Any]) -> None:
    for call in value["choices"][0]["message"].get("tool_calls", ()):
        function = call["function"]
        function["arguments"] = json.dumps(json.loads(function["arguments"]), sort_keys=True)


def _one_id(value: dict[str, Any]) -> None:
    for call in value["choices"][0]["message"].get("tool_calls", ()):
        call["id"] = "call_0"


def _other_reason(value: dict[str, Any]) -> None:
    choice = value["choices"][0]
    choice["finish_reason"] = "stop" if choice["finish_reason"] != "stop" else "length"


def _insert_empty(events: list[bytes]) -> list[bytes]:
    for index in _deltas(events):
        empty = events[index].partition(b'"content":"')[0] + b'"content":""},'
        rest = events[index].partition(b'"},')[2]
        return [*events[:index], empty + rest, *events[index:]]
    return events


WIRE_FAULTS: Mapping[str, Spoil] = {
    # streams
    "two events swapped": _stream(lambda events: _swap(events, 1, 2)),
    "finish before the last delta": _stream(lambda events: _swap(events, -4, -3)),
    "a delta lost": _stream(lambda events: _without(events, next(_deltas(events), None))),
    "a delta twice": _stream(
        lambda events: [
            e for i, event in enumerate(events) for e in [event] * (1 + (i in [*_deltas(events)][:1]))
        ]
    ),
    "no role": _stream(lambda events: events[1:]),
    "no usage": _stream(lambda events: _without(events, len(events) - 2)),
    "no end mark": _stream(lambda events: events[:-1]),
    "two end marks": _stream(lambda events: [*events, events[-1]]),
    "finish twice": _stream(lambda events: [*events[:-2], events[-3], *events[-2:]]),
    "an empty delta": _stream(_insert_empty),
    "an unknown comment": _stream(lambda events: [events[0], b": ping", *events[1:]]),
    "an event over two lines": _stream(lambda events: [events[0].replace(b',"', b',\n"', 1), *events[1:]]),
    "a blank line short": lambda answer: replace(answer, body=answer.body.removesuffix(b"\n")),
    "another id in the middle": _chunks(_another_id),
    "thinking as content": _chunks(_rename_channel),
    "calls counted from one": _chunks(_shift_index),
    "one token too many": _chunks(_count_one_more),
    "a member of every chunk missing": _chunks(lambda chunk, number: chunk.pop("object") and None),
    "an unknown member": _chunks(lambda chunk, number: chunk.update(extra=1)),
    # bytes
    "a byte of text lost": lambda answer: _lose_byte(answer, b"Looking"),
    "a byte of a character lost": lambda answer: _lose_byte(answer, "😀".encode()[1:]),
    "a byte of JSON lost": lambda answer: _lose_byte(answer, b'":'),
    # whole answers
    "another finish reason": _whole(_other_reason),
    "whole without usage": _whole(lambda value: value.pop("usage") and None),
    "totals that do not add up": _whole(lambda value: value["usage"].update(total_tokens=1)),
    "arguments sorted": _whole(_sort_arguments),
    "calls with one id": _whole(_one_id),
    "content null": _whole(lambda value: value["choices"][0]["message"].update(content=None)),
    "two choices": _whole(lambda value: value["choices"].append(value["choices"][0])),
    # errors and heads
    "another error code": _error(lambda value: value["error"].update(code="invalid_type")),
    "no param": _error(lambda value: value["error"].update(param=None)),
    "another envelope": _error(lambda value: value.update(type="error", request_id="r")),
    "a 400 as 500": lambda answer: replace(answer, status=500) if answer.status == 400 else answer,
    "an error as 200": lambda answer: replace(answer, status=200) if answer.status == 400 else answer,
    "no request id": lambda answer: replace(
        answer, headers={name: value for name, value in answer.headers.items() if "request-id" not in name}
    ),
}
