"""Every route exists, is documented, carries a request id, and answers doubled too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from conformance.http.client import Client, chat_body
from conformance.http.schemas import check_answer
from ninfer import spec
from ninfer.server.routes import ROUTES, doubled_routes
from tests.server.chat.capabilities import ACTIVE, NEUTRAL
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine, saying
from tests.server.inprocess import serving


@pytest.fixture(scope="module")
def client(nano: Path) -> Iterator[Client]:
    with serving(nano, RecordingEngine(saying("hel", "lo")), MODEL) as client:
        yield client


def without_ids(body: bytes) -> Any:
    """A JSON answer without what differs between two equal requests."""
    value = json.loads(body)
    for name in ("id", "created", "timings"):
        value.pop(name, None)
    return value


def test_the_document_is_valid_openapi() -> None:
    validate(spec.document("http/openapi"))


def test_routes_and_document_list_the_same_operations() -> None:
    paths = spec.document("http/openapi")["paths"]
    documented = {(method.upper(), path) for path, item in paths.items() for method in item}
    assert documented == {(route.method, route.path) for route in ROUTES}


def test_numbers_in_the_document_are_those_of_the_other_specs() -> None:
    properties = spec.document("http/openapi")["components"]["schemas"]["ChatRequest"]["properties"]
    for name, row in spec.document("sampling")["ranges"].items():
        bounds = {key: properties[name][key] for key in ("minimum", "maximum")}
        assert bounds == {"minimum": row["minimum"], "maximum": row["maximum"]}
        assert properties[name]["type"] == [row["type"], "null"]
    limits = spec.document("http/chat")["limits"]
    for name in ("max_tokens", "max_completion_tokens"):
        assert properties[name]["maximum"] == limits["max_output_tokens"]
    assert properties["stop"]["oneOf"][2]["maxItems"] == limits["max_stops"]
    options, aliases = (
        spec.document("prompt")["options"],
        spec.document("http/chat")["reasoning_effort_aliases"],
    )
    efforts = [options["no_effort"], *options["reasoning_efforts"], *aliases, None]
    assert properties["reasoning_effort"]["enum"] == efforts


def test_every_field_of_the_tables_is_documented() -> None:
    """Known fields of a chat body, refused ones among them, each with the values that it takes."""
    properties = spec.document("http/openapi")["components"]["schemas"]["ChatRequest"]["properties"]
    refused = spec.document("http/chat")["refused"]
    assert set(refused) <= set(properties)
    for name, values in NEUTRAL.items():
        schema = properties[name]
        for value in [None, *values]:
            Draft202012Validator(schema).validate(value)
        for value in ACTIVE[name]:
            assert not Draft202012Validator(schema).is_valid(value), (name, value)


def test_keys_stand_in_the_document() -> None:
    document = spec.document("http/openapi")
    assert document["components"]["securitySchemes"]["apiKey"]["name"] == "x-api-key"
    free = [path for path, item in document["paths"].items() if item.get("get", {}).get("security") == []]
    assert free == ["/health"]


def test_the_document_is_served(client: Client) -> None:
    answer = client.get("/openapi.json")
    assert answer.status == 200
    assert answer.json == json.loads(json.dumps(spec.document("http/openapi")))


@pytest.mark.parametrize("path", [route.path for route in ROUTES if route.method == "GET"])
def test_head_is_a_get_without_its_body(client: Client, path: str) -> None:
    path = path.replace("{model_id}", "nano")
    head, get = client.request("HEAD", path), client.get(path)
    assert (head.status, head.body) == (get.status, b"")
    assert head.headers["content-length"] == str(len(get.body))
    assert head.headers["x-request-id"]


@pytest.mark.clause("HTTP-001", "HEALTH-001")
def test_health(client: Client) -> None:
    answer = client.get("/health")
    assert (answer.status, answer.body) == (200, b'{"status":"ok"}')
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.clause("HTTP-005")
def test_chat_exists(client: Client) -> None:
    answer = client.chat()
    assert answer.status == 200
    assert answer.json["object"] == "chat.completion"
    check_answer("POST", "/v1/chat/completions", 200, answer.json)


@pytest.mark.clause("HTTP-017")
def test_every_answer_has_its_own_request_id(client: Client) -> None:
    answers = [
        client.chat(),
        client.chat(),
        client.get("/v1/models"),
        client.get("/nowhere"),
        client.get("/health"),
    ]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert all(ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.clause("HTTP-019")
def test_errors_carry_a_request_id(client: Client) -> None:
    answer = client.request("POST", "/v1/chat/completions", b'{"model":')
    assert answer.status == 400
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/completions", "/v1/v1/health", "/docs", "/v1/v1/v1/models"]
)
def test_unknown_routes_are_404(client: Client, method: str, path: str) -> None:
    answer = client.request(method, path)
    assert answer.status == 404
    assert answer.error["code"] == "not_found"


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_other_methods_are_405_with_allow(client: Client, route: Any) -> None:
    path = route.path.replace("{model_id}", "nano")
    there = {method for other in ROUTES if other.path == route.path for method in other.methods}
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH"} - there:
        answer = client.request(method, path)
        assert answer.status == 405
        assert set(answer.headers["allow"].split(", ")) == there
        assert answer.error["code"] == "method_not_allowed"


def test_the_doubled_prefix_behaves_alike(client: Client) -> None:
    assert {route.path for route in doubled_routes()} == {
        "/v1" + r.path for r in ROUTES if r.path != "/health"
    }
    for path in ("/v1/models", "/v1/models/nano", "/v1/models/other", "/openapi.json"):
        single, doubled = client.get(path), client.get("/v1" + path)
        assert (single.status, single.body) == (doubled.status, doubled.body)
        assert doubled.headers["x-request-id"]
    for body in (chat_body(), {"model": "nano"}, chat_body(model="other")):
        single = client.request("POST", "/v1/chat/completions", body)
        doubled = client.request("POST", "/v1/v1/chat/completions", body)
        assert (single.status, without_ids(single.body)) == (doubled.status, without_ids(doubled.body))
