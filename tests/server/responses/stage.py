"""A server of the nano model with an engine that says what a test wants, and the reading of its streams."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.http.client import Answer, Client
from conformance.http.schemas import check_answer, check_schema
from conformance.http.streams import check_order, named_payloads, responses_events
from ninfer.engine.events import RequestEvent
from ninfer.engine.requests import GenerationRequest
from ninfer.engine.scripted import Play, Script, Step
from ninfer.prompt import Tokenizer
from tests.server.engines import RecordingEngine

PATH = "/v1/responses"
THINKING = ("I ", "think", "</think>\n\n", "Hel", "lo")


class PlayingEngine(RecordingEngine):
    """A scripted engine whose next plays a test sets."""

    def __init__(self) -> None:
        super().__init__(Script())
        self.play = Play()

    def generate(
        self, request: GenerationRequest, cancelled: Callable[[], bool], queue_s: float
    ) -> Iterator[RequestEvent]:
        self._script = Script(default=self.play)
        return super().generate(request, cancelled, queue_s)


@dataclass(slots=True)
class Stage:
    """One server and its engine."""

    client: Client
    engine: PlayingEngine
    tokenizer: Tokenizer

    def say(self, *steps: str | Step, cached: int = 0) -> None:
        """What every following request is answered: texts are one token each."""
        played = tuple(step if isinstance(step, Step) else Step(text=step) for step in steps)
        self.engine.play = Play(played, cached_tokens=cached)

    def post(self, path: str = PATH, **members: Any) -> Answer:
        """A body with a user's ``hi`` unless ``input`` is given, as ``...`` leaves it out."""
        body = {"model": "nano", "input": "hi"} | members
        return self.client.request("POST", path, {k: v for k, v in body.items() if v is not ...})

    def create(self, **members: Any) -> dict[str, Any]:
        """The whole Response, which must be a 200 of its schema."""
        answer = self.post(**members)
        assert answer.status == 200, answer.body
        check_answer("POST", PATH, 200, answer.json)
        response: dict[str, Any] = answer.json
        return response

    def refused(self, path: str = PATH, **members: Any) -> dict[str, Any]:
        """The error of a body that must be refused; nothing reaches the engine."""
        before = len(self.engine.requests)
        answer = self.post(path, **members)
        assert 400 <= answer.status < 500, answer.body
        check_schema("Error", answer.json)
        assert len(self.engine.requests) == before
        return dict(answer.error) | {"status": answer.status}

    def count(self, **members: Any) -> int:
        answer = self.post(f"{PATH}/input_tokens", **members)
        assert answer.status == 200, answer.body
        check_answer("POST", f"{PATH}/input_tokens", 200, answer.json)
        tokens: int = answer.json["input_tokens"]
        return tokens

    def stream(self, **members: Any) -> list[dict[str, Any]]:
        """The events of a streamed Response, each checked, their order too."""
        answer = self.post(stream=True, **members)
        assert answer.status == 200, answer.body
        assert answer.headers["content-type"].startswith("text/event-stream")
        return checked_events(answer.body)

    def prompt(self, **members: Any) -> str:
        """The text of the prompt that a body becomes."""
        response = self.create(**members)
        assert response["usage"]["input_tokens"] == len(self.engine.prompt())
        return self.tokenizer.decode(self.engine.prompt())

    def get(self, response_id: str, rest: str = "") -> Answer:
        return self.client.get(f"{PATH}/{response_id}{rest}")

    def items(self, response_id: str, query: str = "?order=asc&limit=100") -> list[dict[str, Any]]:
        answer = self.get(response_id, f"/input_items{query}")
        assert answer.status == 200, answer.body
        check_answer("GET", f"{PATH}/{{response_id}}/input_items", 200, answer.json)
        items: list[dict[str, Any]] = answer.json["data"]
        return items


def checked_events(body: bytes) -> list[dict[str, Any]]:
    """The events of a whole stream; framing, names, schema, numbers and order are the contract's."""
    events = read_events(body)
    for event in events:
        check_schema("ResponsesEvent", event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    check_order("responses", labels(events))
    return events


def read_events(body: bytes) -> list[dict[str, Any]]:
    """The data of each event; comments are left out."""
    return [dict(event) for event in named_payloads(body) if not isinstance(event, str)]


def labels(events: Sequence[dict[str, Any]]) -> list[str]:
    """Their names in ``streams.yaml``."""
    return responses_events(events)


def joined(events: Sequence[dict[str, Any]], kind: str) -> str:
    """All deltas of one type."""
    return "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta")


def message(role: str, *texts: str, **members: Any) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"role": role, "content": [{"type": kind, "text": text} for text in texts], **members}


def reasoning(text: str, **members: Any) -> dict[str, Any]:
    return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}], **members}


def call(call_id: str, name: str = "f", arguments: str = "{}", **members: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **members}


def result(call_id: str, output: Any = "done", **members: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output, **members}


def logged(log: Path, response: Mapping[str, Any], event: str = "request_done") -> dict[str, Any]:
    """The request log's record of a Response; it may be written a moment after the answer."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for line in log.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                found: dict[str, Any] = json.loads(line)
                if found["event"] == event and found["request"]["response_id"] == response["id"]:
                    return found
        time.sleep(0.02)
    raise AssertionError(f"no {event} of {response['id']}")
