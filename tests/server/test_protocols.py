"""What the three protocols share: one engine, one capacity, the same rules of templates, keys and routes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from conformance.http.client import Answer, Client, read_until
from ninfer.engine.scripted import Play, Script, Step
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine, saying
from tests.server.inprocess import serving

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
BODIES: Mapping[str, dict[str, Any]] = {
    CHAT: {"model": "nano", "messages": [{"role": "user", "content": "hi"}]},
    RESPONSES: {"model": "nano", "input": "hi"},
    MESSAGES: {"model": "nano", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 64},
}
COUNTS: Mapping[str, dict[str, Any]] = {
    f"{RESPONSES}/input_tokens": {"model": "nano", "input": "hi"},
    f"{MESSAGES}/count_tokens": {"model": "nano", "messages": [{"role": "user", "content": "hi"}]},
}


@pytest.fixture(scope="module")
def engine() -> RecordingEngine:
    return RecordingEngine(saying("why", "</think>\n\n", "hello"))


@pytest.fixture(scope="module")
def client(nano: Path, engine: RecordingEngine) -> Iterator[Client]:
    with serving(nano, engine, MODEL) as client:
        yield client


def post(client: Client, path: str, **members: Any) -> Answer:
    return client.request("POST", path, (BODIES | COUNTS)[path] | members)


@pytest.mark.clause("START-002", "HTTP-012")
def test_all_protocols_answer_from_one_engine(client: Client, engine: RecordingEngine) -> None:
    before = len(engine.requests)
    for path in BODIES:
        assert post(client, path).status == 200
    assert len(engine.requests) == before + 3
    for path in COUNTS:
        answer = post(client, path)
        assert answer.status == 200
        assert answer.json["input_tokens"] == len(engine.prompt())
    assert len(engine.requests) == before + 3


@pytest.mark.clause("HTTP-002")
def test_metrics_exist(client: Client) -> None:
    answer = client.get("/metrics")
    assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, "text/plain")
    assert b"\n# TYPE ninfer_requests_running gauge\n" in answer.body
    assert b"\n# TYPE ninfer_request_duration_seconds histogram\n" in answer.body


def without_ids(answer: Answer) -> Any:
    """A body without what is new on every answer."""
    value = answer.json
    for name in ("id", "created", "created_at", "completed_at", "request_id", "timings"):
        value.pop(name, None)
    for item in (*value.get("output", ()), *value.get("data", ())):
        item.pop("id", None)
    return value


@pytest.mark.clause("HTTP-015", "HTTP-016")
def test_a_doubled_prefix_changes_nothing(client: Client) -> None:
    requests: list[tuple[str, str, Any]] = [
        *[("POST", path, body) for path, body in (BODIES | COUNTS).items()],
        *[("POST", path, {"model": "nano", "max_tokens": -1}) for path in (BODIES | COUNTS)],
        *[("POST", path, b'{"model":') for path in BODIES],
        ("GET", "/v1/models", None),
        ("GET", f"{RESPONSES}/resp_x", None),
        ("DELETE", f"{RESPONSES}/resp_x", None),
        ("GET", f"{RESPONSES}/resp_x/input_items", None),
        ("POST", f"{RESPONSES}/resp_x/cancel", {}),
        ("POST", f"{RESPONSES}/compact", {}),
    ]
    for method, path, body in requests:
        single, doubled = (client.request(method, prefix + path, body) for prefix in ("", "/v1"))
        assert single.status == doubled.status
        assert without_ids(single) == without_ids(doubled)
        header = "request-id" if path.startswith(MESSAGES) else "x-request-id"
        assert single.headers[header] != doubled.headers[header]
    assert client.get("/v1/v1/health").status == 404


EFFORTS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    CHAT: lambda effort: {"reasoning_effort": effort},
    RESPONSES: lambda effort: {"reasoning": {"effort": effort}},
    MESSAGES: lambda effort: {"output_config": {"effort": effort}},
}


@pytest.mark.clause("THINK-021")
def test_a_refused_effort_is_the_nearest_on_every_endpoint(client: Client, engine: RecordingEngine) -> None:
    prompts = []
    for path, asking in EFFORTS.items():
        for effort in ("high", "xhigh"):
            assert post(client, path, **asking(effort)).status == 200
            prompts.append(engine.prompt())
    assert all(prompt == prompts[0] for prompt in prompts)


@pytest.mark.clause("TMPL-017")
def test_template_kwargs_reach_the_template_on_every_endpoint(
    nano: Path, engine: RecordingEngine, tmp_path: Path
) -> None:
    template = tmp_path / "foo.jinja"
    template.write_text("{{ 'x' * foo }}<|im_start|>assistant\n{{ '' }}")
    with serving(nano, engine, (*MODEL, "--chat-template", str(template))) as own:
        for path in BODIES:
            lengths = []
            for foo in (10, 30):
                assert post(own, path, chat_template_kwargs={"foo": foo}).status == 200
                lengths.append(len(engine.prompt()))
            assert lengths[1] > lengths[0]
            assert post(own, path, chat_template_kwargs=[]).status == 400


@pytest.mark.clause("EXEC-008")
def test_how_answers_end_in_each_protocol(client: Client) -> None:
    def ends(**limits: int) -> list[str]:
        (limit,) = limits.values() if limits else (None,)
        members = (
            [{}, {}, {}]
            if limit is None
            else [{"max_tokens": limit}, {"max_output_tokens": limit}, {"max_tokens": limit}]
        )
        chat, responses, messages = (
            post(client, path, **dict(asked)).json for path, asked in zip(BODIES, members, strict=True)
        )
        return [chat["choices"][0]["finish_reason"], responses["status"], messages["stop_reason"]]

    assert ends(limit=1) == ["length", "incomplete", "max_tokens"]
    assert ends() == ["stop", "completed", "end_turn"]


LOCKED = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/nano"),
    ("POST", CHAT),
    ("POST", RESPONSES),
    ("POST", f"{RESPONSES}/input_tokens"),
    ("POST", f"{RESPONSES}/compact"),
    ("GET", f"{RESPONSES}/resp_x"),
    ("DELETE", f"{RESPONSES}/resp_x"),
    ("GET", f"{RESPONSES}/resp_x/input_items"),
    ("POST", f"{RESPONSES}/resp_x/cancel"),
    ("POST", MESSAGES),
    ("POST", f"{MESSAGES}/count_tokens"),
    ("GET", "/metrics"),
]


@pytest.mark.clause("AUTH-002", "AUTH-005")
def test_every_route_needs_the_key(nano: Path, engine: RecordingEngine) -> None:
    before = len(engine.requests)
    with serving(nano, engine, (*MODEL, "--api-key", "k")) as locked:
        for method, path in LOCKED:
            for headers in ({}, {"x-api-key": "z"}, {"authorization": "Bearer z"}):
                answer = locked.request(method, path, (BODIES | COUNTS).get(path), headers)
                assert answer.status == 401
                kind = "authentication_error" if path.startswith(MESSAGES) else "invalid_request_error"
                assert answer.error["type"] == kind
        assert len(engine.requests) == before
        for headers in ({"x-api-key": "k"}, {"authorization": "Bearer k"}):
            assert locked.request("POST", MESSAGES, BODIES[MESSAGES], headers).status == 200
            assert locked.request("GET", f"{RESPONSES}/resp_x", None, headers).status == 404


def unfinished(client: Client, path: str) -> Any:
    """A request of which the server has only the beginning: it holds its slot."""
    body = json.dumps((BODIES | COUNTS)[path]).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return client.raw(head + body[:-1])


@pytest.mark.clause("SCHED-002", "SCHED-003")
def test_a_full_capacity_is_overload_in_each_protocols_words(nano: Path) -> None:
    slow = Script(default=Play(tuple(Step(text="x", wait_s=0.05) for _ in range(2000))))
    with serving(nano, RecordingEngine(slow), (*MODEL, "--max-pending-requests", "1")) as full:
        streams = [full.open_chat(stream=True, max_tokens=5000) for _ in range(2)]
        read_until(streams[0], b"HTTP/1.1 200 OK")
        while (answer := post(full, CHAT, max_tokens=1)).status != 429:
            pass
        assert answer.error["code"] == "server_overloaded"
        answer = post(full, RESPONSES)
        assert (answer.status, answer.error["code"]) == (429, "server_overloaded")
        answer = post(full, MESSAGES)
        assert (answer.status, answer.error["type"]) == (529, "overloaded_error")
        for path, overload in zip(COUNTS, (429, 529), strict=True):
            assert post(full, path).status == 200  # generation being full does not keep counts out
            held = [unfinished(full, path) for _ in range(2)]
            while post(full, path).status != overload:
                pass
            for sock in held:
                sock.sendall(b"}")
                assert sock.recv(100).startswith(b"HTTP/1.1 200")
                sock.close()
        for stream in streams:
            stream.close()
