"""Authentication and CORS: every route alike, on answers, streams and errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from conformance.http.client import Answer, Client
from conformance.http.schemas import check_schema
from conformance.http.streams import payloads
from ninfer.server.access import Access
from ninfer.server.routes import ROUTES, doubled_routes
from tests.server.conftest import MODEL
from tests.server.engines import RecordingEngine, saying
from tests.server.inprocess import serving

KEY = "local-secret"
BEARER = {"Authorization": f"Bearer {KEY}"}
X_API_KEY = {"x-api-key": KEY}
PREFLIGHT = {
    "Origin": "http://a.example",
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


@pytest.fixture(scope="module")
def engine() -> RecordingEngine:
    return RecordingEngine(saying("hel", "lo"))


@pytest.fixture(scope="module")
def locked(nano: Path, engine: RecordingEngine) -> Iterator[Client]:
    with serving(nano, engine, (*MODEL, "--api-key", KEY, "--cors")) as client:
        yield client


@pytest.fixture(scope="module")
def open_(nano: Path, engine: RecordingEngine) -> Iterator[Client]:
    with serving(nano, engine, MODEL) as client:
        yield client


def chat(client: Client, headers: Mapping[str, str], **members: object) -> Answer:
    body = {"model": "nano", "messages": [{"role": "user", "content": "hi"}], **members}
    return client.request("POST", "/v1/chat/completions", body, headers)


@pytest.mark.clause("AUTH-001", "OPT-003")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (BEARER, 200),
        (X_API_KEY, 200),
        ({"authorization": f"bearer {KEY}"}, 200),
        ({"authorization": f"Bearer  {KEY} "}, 200),
        ({**X_API_KEY, "Authorization": "Bearer other"}, 200),
        ({}, 401),
        ({"Authorization": "Bearer z"}, 401),
        ({"Authorization": KEY}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": f"Bearer {KEY}x"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "é"}, 401),
    ],
)
def test_the_key_in_either_header(locked: Client, headers: dict[str, str], status: int) -> None:
    assert locked.request("GET", "/v1/models", headers=headers).status == status


@pytest.mark.clause("AUTH-001", "OPT-003")
@pytest.mark.parametrize("route", [*ROUTES, *doubled_routes()], ids=lambda route: route.path)
def test_every_route_but_health_wants_the_key(locked: Client, engine: RecordingEngine, route: object) -> None:
    method, path = route.method, route.path.replace("{model_id}", "nano")  # type: ignore[attr-defined]
    before = len(engine.requests)
    answer = locked.request(method, path, {} if method == "POST" else None)
    if path == "/health":
        assert answer.status == 200
        return
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert KEY not in answer.body.decode()
    assert len(engine.requests) == before
    if "/messages" not in path:
        assert answer.error["code"] == "invalid_api_key"
        check_schema("Error", answer.json)
        assert answer.headers["x-request-id"]


def test_unknown_routes_want_the_key_too(locked: Client) -> None:
    assert locked.request("GET", "/nowhere").status == 401
    assert locked.request("GET", "/nowhere", headers=BEARER).status == 404


@pytest.mark.clause("AUTH-003", "HEALTH-004")
def test_health_needs_no_key(locked: Client) -> None:
    assert locked.get("/health").status == 200
    assert locked.request("HEAD", "/health").status == 200
    assert locked.get("/v1/models").status == 401


@pytest.mark.clause("AUTH-006", "OPT-003")
def test_without_the_option_no_key_is_asked_for(open_: Client) -> None:
    for headers in ({}, BEARER, {"x-api-key": "z"}, {"Authorization": "nonsense"}):
        assert open_.request("GET", "/v1/models", headers=headers).status == 200


def test_a_body_without_the_key_is_not_waited_for(locked: Client) -> None:
    """The refusal comes at once; what is still sent of the body is not kept."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {2**20}\r\n\r\n"
    sock = locked.raw(head.encode() + b"{")
    assert sock.recv(65536).startswith(b"HTTP/1.1 401")
    sock.close()


@pytest.mark.clause("AUTH-004", "CORS-002", "OPT-083")
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/models", "/health", "/nowhere", "/v1/messages"]
)
def test_a_preflight_is_answered_everywhere_without_key(locked: Client, path: str) -> None:
    answer = locked.request("OPTIONS", path, headers=PREFLIGHT)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-allow-headers"] == PREFLIGHT["Access-Control-Request-Headers"]
    assert int(answer.headers["access-control-max-age"]) > 0
    allowed = answer.headers["access-control-allow-methods"].split(", ")
    assert {route.method for route in ROUTES} <= set(allowed)


def test_a_preflight_that_names_no_headers_is_told_the_usual_ones(locked: Client) -> None:
    answer = locked.request("OPTIONS", "/v1/chat/completions", headers={"Origin": "http://a.example"})
    allowed = answer.headers["access-control-allow-headers"].lower()
    for name in ("authorization", "content-type", "x-api-key", "anthropic-version"):
        assert name in allowed


@pytest.mark.clause("CORS-002", "OPT-083")
def test_answers_streams_and_errors_may_be_read_by_any_origin(locked: Client) -> None:
    origin = {"Origin": "http://a.example", **BEARER}
    streamed = chat(locked, origin, stream=True)
    assert payloads(streamed.body)[-1] == "[DONE]"
    answers = [
        locked.request("GET", "/v1/models", headers=origin),
        chat(locked, origin),
        streamed,
        chat(locked, origin, temperature=9),
        locked.request("GET", "/nowhere", headers=origin),
        locked.request("GET", "/v1/models", headers={"Origin": "http://a.example"}),
    ]
    assert [answer.status for answer in answers] == [200, 200, 200, 400, 404, 401]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.clause("CORS-001", "OPT-083")
def test_without_the_option_nothing_is_said_to_browsers(open_: Client) -> None:
    origin = {"Origin": "http://a.example"}
    answers = [
        open_.request("GET", "/v1/models", headers=origin),
        chat(open_, origin, stream=True),
        open_.request("GET", "/nowhere", headers=origin),
        open_.request("OPTIONS", "/v1/chat/completions", headers=PREFLIGHT),
    ]
    assert answers[-1].status == 405
    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_the_key_shows_in_no_representation() -> None:
    assert KEY not in repr(vars(Access(KEY, cors=False)))
