"""Runs every case under ``cases/`` against the server: request in, what must come back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from conformance.http.client import Answer, Client
from conformance.http.contract import document
from conformance.http.schemas import check_answer, check_schema
from conformance.http.streams import chat_events, check_order, payloads

HERE = Path(__file__).parent
CHAT = {"method": "POST", "path": "/v1/chat/completions"}
SMALL_CHAT = {"model": "$model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


def cases() -> Iterator[Any]:
    for path in sorted((HERE / "cases").glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            shared = {name: group[name] for name in ("method", "path") if name in group}
            for test in group["tests"]:
                name = f"{path.stem}: {group['description']}: {test['description']}"
                yield pytest.param(CHAT | shared | test, id=name)


@pytest.mark.parametrize("path", sorted((HERE / "cases").glob("*.json")), ids=lambda path: path.name)
def test_case_files_follow_their_schema(path: Path) -> None:
    schema = json.loads((HERE / "cases.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator(schema).validate(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("case", list(cases()))
def test_case(client: Client, model: str, case: Mapping[str, Any]) -> None:
    path = case["path"].replace("$model", model)
    answer = client.request(case["method"], path, body_of(case, model))
    expect = case["expect"]
    assert answer.status == expect["status"], answer.body
    for name in expect.get("headers", ()):
        assert answer.headers.get(name), f"no {name} header"
    if "stream" in expect:
        check_stream(answer, expect)
    else:
        check_whole(case, answer, expect)


def check_stream(answer: Answer, expect: Mapping[str, Any]) -> None:
    stream = payloads(answer.body)
    events = chat_events(stream)
    check_order(expect["stream"], events)
    for chunk in stream:
        if not isinstance(chunk, str):
            check_schema("ChatChunk", chunk)
    assert events == expect.get("events", events)


def check_whole(case: Mapping[str, Any], answer: Answer, expect: Mapping[str, Any]) -> None:
    template = case["path"].replace("$model", "{model_id}").replace("/v1/v1/", "/v1/")
    if template in document("http/openapi")["paths"] and answer.status != 405:
        check_answer(case["method"], template, answer.status, answer.json)
    if answer.status >= 400:
        check_schema("Error", answer.json)
        assert answer.error["code"] == expect.get("code", answer.error["code"])
        assert answer.error["param"] == expect.get("param", answer.error["param"])
        return
    assert answer.json == expect.get("body", answer.json)
    if "finish_reason" in expect:
        assert answer.json["choices"][0]["finish_reason"] == expect["finish_reason"]
    if "completion_tokens_at_most" in expect:
        assert answer.json["usage"]["completion_tokens"] <= expect["completion_tokens_at_most"]


def body_of(case: Mapping[str, Any], model: str) -> bytes | None:
    """The request's body with the public model name put in."""
    if "text" in case:
        return str(case["text"]).encode()
    value = SMALL_CHAT | case["chat"] if "chat" in case else case.get("json")
    return None if value is None else json.dumps(value).replace("$model", model).encode()
