"""Asks a case of a server and judges what comes back.

Owns what holds for every answer (schema, headers, order of events, stream equals whole) and the words of
``cases.schema.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from conformance.http.cases import Case
from conformance.http.client import Answer, Client
from conformance.http.contract import document
from conformance.http.protocols import PROTOCOLS
from conformance.http.protocols.outcome import Outcome
from conformance.http.schemas import check_answer

_EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class World:
    """A server and the name of its model; of a server of ours also what it said so far and its process."""

    client: Client
    model: str
    log: Callable[[], str] | None = None
    pid: int | None = None


# The world of a scripted server with these options.
ScriptedWorlds = Callable[[tuple[str, ...]], World]


def check_case(world: World, case: Case) -> None:
    """Fails unless the server answers ``case`` as it must; a body of the protocol is asked in both forms."""
    if case.ask is None:
        _check(world, case, _plain_body(world, case))
        return
    body = PROTOCOLS[case.protocol].body(world.model, _named(case.ask, world.model))
    if case.seed is not None:
        body = PROTOCOLS[case.protocol].playing(body, case.seed)
    if "stream" in case.ask:
        _check(world, case, body)
        return
    whole = _check(world, case, body)
    streamed = _check(world, case, PROTOCOLS[case.protocol].streamed(body))
    assert streamed == whole, f"stream and whole answer differ:\n{streamed}\n{whole}"


def ask(world: World, protocol: str, members: Mapping[str, Any]) -> Outcome:
    """The outcome of a small request that must be answered."""
    body = PROTOCOLS[protocol].body(world.model, members)
    answer = world.client.request("POST", PROTOCOLS[protocol].path, body)
    assert answer.status == 200, answer.body
    return PROTOCOLS[protocol].check_whole(answer.json)


def _check(world: World, case: Case, body: Any) -> Outcome | None:
    """One request and its answer; None for an answer that is no outcome of the protocol."""
    path = (case.path or PROTOCOLS[case.protocol].path).replace("$model", world.model)
    answer = world.client.request(case.method, path, body, case.headers)
    expect = case.expect
    assert answer.status == expect["status"], (answer.status, answer.body)
    assert answer.headers.get(PROTOCOLS[case.protocol].request_id_header), "no request id"
    _check_headers(answer, expect.get("headers", []))
    if answer.status >= 400:
        _check_error(case, answer)
        return None
    if answer.headers.get("content-type", "").startswith(_EVENT_STREAM):
        protocol = PROTOCOLS[case.protocol]
        events, outcome = protocol.check_stream(protocol.read_stream(answer.body))
        assert events == expect.get("events", events)
    elif case.ask is None:
        _check_document(case, answer)
        return None
    else:
        outcome = PROTOCOLS[case.protocol].check_whole(answer.json)
    _check_outcome(world, case, body, outcome)
    return outcome


def _check_headers(answer: Answer, wanted: Any) -> None:
    """A list names headers that must be there; an object gives values, null for one that must not be."""
    if isinstance(wanted, list):
        wanted = dict.fromkeys(wanted, True)
    for name, value in wanted.items():
        found = answer.headers.get(name)
        assert bool(found) if value is True else found == value, f"{name}: {found!r}"


def _check_error(case: Case, answer: Answer) -> None:
    template = _template(case)
    if template in document("http/openapi")["paths"] and answer.status != 405:
        check_answer(case.method, template, answer.status, answer.json)
    code, message, param = PROTOCOLS[case.protocol].check_error(answer.json)
    expect = case.expect
    assert PROTOCOLS[case.protocol].status_of(code) == answer.status, code
    assert code == expect.get("code", code)
    assert param == expect.get("param", param)
    for words in expect.get("message", ()):
        assert words in message, message


def _check_document(case: Case, answer: Answer) -> None:
    template = _template(case)
    if template in document("http/openapi")["paths"] and answer.body:
        check_answer(case.method, template, answer.status, answer.json)
    if "body" in case.expect:
        assert answer.json == case.expect["body"]


def _check_outcome(world: World, case: Case, body: Mapping[str, Any], outcome: Outcome) -> None:
    expect = case.expect
    for member in ("content", "reasoning", "reason", "completion_tokens"):
        if member in expect:
            assert getattr(outcome, member) == expect[member], outcome
    if "calls" in expect:
        assert [list(call) for call in outcome.calls] == expect["calls"]
    if "completion_tokens_at_most" in expect:
        assert outcome.completion_tokens <= expect["completion_tokens_at_most"]
    streams = body.get("stream", False)
    if "same_as" in expect and not streams:
        other = ask(world, case.protocol, _named(expect["same_as"], world.model))
        assert other == outcome, f"answers differ:\n{other}\n{outcome}"
    for relation, members in {} if streams else expect.get("prompt", {}).items():
        tokens = ask(world, case.protocol, _named(members, world.model)).prompt_tokens
        holds = (
            outcome.prompt_tokens > tokens if relation == "longer_than" else outcome.prompt_tokens == tokens
        )
        assert holds, f"{outcome.prompt_tokens} tokens, not {relation} {tokens}"


def _template(case: Case) -> str:
    """The path as the OpenAPI document has it."""
    path = case.path or PROTOCOLS[case.protocol].path
    return path.replace("$model", "{model_id}").replace("/v1/v1/", "/v1/")


def _plain_body(world: World, case: Case) -> bytes | None:
    if case.text is not None:
        return case.text.encode()
    return None if case.json is None else json.dumps(_named(case.json, world.model)).encode()


def _named(value: Any, model: str) -> Any:
    """``value`` with the public model name put in."""
    return json.loads(json.dumps(value).replace("$model", model))
