"""``POST /v1/responses/input_tokens``: the prompt of Create, counted."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ninfer.prompt import Tokenizer
from tests.server.conftest import MODEL
from tests.server.inprocess import serving
from tests.server.responses.stage import PATH, PlayingEngine, Stage, call, message, result
from tests.server.responses.test_tools import GROUP, TOOLS

COUNT = f"{PATH}/input_tokens"


@pytest.mark.clause("COUNT-001", "HTTP-007")
def test_the_answer_has_two_members(stage: Stage) -> None:
    before = len(stage.engine.requests)
    answer = stage.post(COUNT, input="Count this prompt.")
    assert answer.status == 200
    assert set(answer.json) == {"object", "input_tokens"}
    assert answer.json["object"] == "response.input_tokens"
    assert answer.json["input_tokens"] > 4
    assert answer.headers["x-request-id"]
    assert len(stage.engine.requests) == before


@pytest.mark.clause_early("COUNT-002")
def test_counting_generates_and_stores_nothing(stage: Stage) -> None:
    before = len(stage.engine.requests)
    assert len({stage.count() for _ in range(10)}) == 1
    assert len(stage.engine.requests) == before


@pytest.mark.clause("COUNT-003")
def test_every_field_of_create_is_taken(stage: Stage) -> None:
    parent = stage.create()["id"]
    body: dict[str, Any] = {
        "input": "more",
        "previous_response_id": parent,
        "instructions": "Be brief.",
        "tools": TOOLS,
        "tool_choice": "auto",
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "text"}},
        "truncation": "disabled",
        "preserve_thinking": True,
    }
    tokens = stage.count(**body)
    assert tokens == stage.count(**body, temperature=0.5, max_output_tokens=3, stream=True, store=False)
    assert stage.refused(COUNT, temperature=3)["param"] == "temperature"


@pytest.mark.clause("COUNT-004")
@pytest.mark.parametrize(
    "members",
    [
        {},
        {"instructions": "Be brief."},
        {"tools": TOOLS},
        {"tools": [GROUP]},
        {"reasoning": {"effort": "none"}},
        {"input": [message("user", "a"), call("c"), result("c"), message("user", "b")]},
        {"previous": True},
        {"previous": True, "input": ..., "instructions": "X", "tools": TOOLS},
    ],
)
def test_the_count_is_what_create_charges(stage: Stage, members: dict[str, Any]) -> None:
    members = dict(members)
    if members.pop("previous", False):
        members["previous_response_id"] = stage.create(input="first")["id"]
    assert stage.count(**members) == stage.create(**members)["usage"]["input_tokens"]


@pytest.mark.clause("COUNT-005")
def test_histories_are_read_as_by_create(stage: Stage) -> None:
    for members in (
        {"previous_response_id": "resp_nope"},
        {"input": [message("user", "a"), call("c")]},
        {"input": [message("user", "a"), result("c")]},
        {"input": ...},
        {"foo": 1},
    ):
        created, counted = stage.refused(**members), stage.refused(COUNT, **members)
        assert created == counted
    calls = [message("user", "a"), call("c1"), call("c2")]
    assert stage.count(input=[*calls, result("c2", "x"), result("c1", "yy")]) == stage.count(
        input=[*calls, result("c1", "yy"), result("c2", "x")]
    )


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"context_management": []}, "context_management"),
    ({"moderation": {}}, "moderation"),
    ({"include": ["file_search_call.results"]}, "include[0]"),
    ({"background": True}, "background"),
    ({"truncation": "auto"}, "truncation"),
    ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0].type"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "mcp", "server_label": "s"}]}, "tools[0].type"),
    ({"tools": [{"type": "custom", "name": "c"}]}, "tools[0].type"),
]


@pytest.mark.clause("COUNT-007")
@pytest.mark.parametrize(("members", "param"), UNSUPPORTED)
def test_what_create_lacks_is_refused_everywhere(stage: Stage, members: dict[str, Any], param: str) -> None:
    for path in (PATH, COUNT):
        error = stage.refused(path, **members)
        assert (error["status"], error["param"]) == (400, param)


# Every optional member of the protocol's request, with a value that asks for its feature.
OPTIONAL: dict[str, Any] = {
    "access_programs": {"cyber": "standard"},
    "background": True,
    "background_options": {},
    "context_management": [{"type": "compaction"}],
    "conversation": "c",
    "image": {},
    "moderation": {"model": "m"},
    "prompt": {"id": "p"},
    "service_tier": "flex",
    "top_logprobs": 2,
    "truncation": "auto",
    "personality": "friendly",
}
PLACEHOLDERS: list[dict[str, Any]] = [
    {"reasoning": {"summary": "detailed"}},
    {"include": ["reasoning.encrypted_content"]},
]


@pytest.mark.clause("COUNT-008")
def test_only_two_features_have_a_placeholder(stage: Stage) -> None:
    for name, value in OPTIONAL.items():
        assert stage.refused(**{name: value})["param"] == name
    includable = ["file_search_call.results", "web_search_call.results", "message.output_text.logprobs"]
    includable += ["message.input_image.image_url", "code_interpreter_call.outputs", "computer_call_output.x"]
    for name in includable:
        assert stage.refused(include=[name])["param"] == "include[0]"
    for members in PLACEHOLDERS:
        stage.create(**members)


@pytest.fixture
def narrow(nano: Path, tokenizer: Tokenizer) -> Iterator[Stage]:
    engine = PlayingEngine()
    with serving(nano, engine, (*MODEL, "--max-pending-requests", "1")) as client:
        yield Stage(client, engine, tokenizer)


def test_counts_have_a_capacity_of_their_own(narrow: Stage) -> None:
    """As many as lanes and waiting places; a full one is overload, and generations are not kept out."""
    body = b'{"model":"nano","input":"hi"}'
    head = f"POST {COUNT} HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    socks: list[socket.socket] = [narrow.client.raw(head + body[:5]) for _ in range(2)]
    answers = []
    while not any(answer.status == 429 for answer in answers):
        answers.append(narrow.post(COUNT))
        assert len(answers) < 100
    assert answers[-1].error["code"] == "server_overloaded"
    assert narrow.create()["object"] == "response"
    for sock in socks:
        sock.sendall(body[5:])
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        sock.close()
    assert narrow.count() > 0
