"""Wire errors: every code of the table renders, and nothing unforeseen leaks."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from sanic import exceptions as sanic_errors

import ninfer
from ninfer import spec
from ninfer.engine.events import Failed
from ninfer.errors import EngineError, RequestError, SpecError
from ninfer.server.envelopes import OPENAI, error_response
from ninfer.server.errors import WireError, failure, wire_error
from ninfer.spec.errors import error_row, error_table


@pytest.mark.parametrize("code", error_table())
def test_every_code_has_its_envelope(code: str) -> None:
    row = error_row(code)
    response = error_response(OPENAI, WireError(code, "m", "p"), "r")
    assert response.status == row.status
    body = json.loads(response.body or b"")
    assert list(body) == ["error"]
    assert list(body["error"]) == spec.document("http/errors")["envelope"]
    assert body["error"] == {"message": "m", "type": row.type, "param": "p", "code": code}
    assert ("retry-after" in response.headers) == (row.retry_after_s is not None)


def test_an_unknown_code_is_a_mistake_of_ours() -> None:
    with pytest.raises(SpecError):
        OPENAI.body(WireError("made_up", "m"))


def test_the_table_says_which_codes_the_source_raises() -> None:
    """A code marked as used stands somewhere in the source as a string; one that is not does not."""
    root = Path(ninfer.__file__).parent
    sources = [path.read_text() for path in root.rglob("*.py")]
    tables = json.dumps(spec.document("http/chat"))
    raised = {code for code in error_table() if any(f'"{code}"' in text for text in (*sources, tables))}
    assert raised == {code for code, row in error_table().items() if row.in_use}


def test_unforeseen_errors_are_logged_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    error = wire_error(KeyError("secret"))
    assert (error.status, error.code) == (500, "internal_error")
    assert "secret" not in OPENAI.body(error).decode()
    assert "KeyError" in caplog.text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (sanic_errors.NotFound("x"), "not_found"),
        (sanic_errors.MethodNotAllowed("Method PUT not allowed", "PUT", ["GET"]), "method_not_allowed"),
        (sanic_errors.PayloadTooLarge("Request header exceeds the size limit"), "headers_too_large"),
        (sanic_errors.PayloadTooLarge("Request body exceeds the size limit"), "request_too_large"),
        (sanic_errors.RequestTimeout("x"), "request_timeout"),
        (sanic_errors.ExpectationFailed("Unknown Expect: x"), "expectation_failed"),
        (sanic_errors.BadRequest("x"), "bad_request"),
        (sanic_errors.ServiceUnavailable("x"), "service_unavailable"),
        (sanic_errors.ServerError("x"), "internal_error"),
    ],
)
def test_the_frameworks_errors_have_codes_of_ours(error: sanic_errors.SanicException, code: str) -> None:
    assert wire_error(error).code == code


def test_405_keeps_its_allow_header() -> None:
    error = sanic_errors.MethodNotAllowed("Method PUT not allowed", "PUT", ["GET"])
    assert error_response(OPENAI, wire_error(error), "r").headers["allow"] == "GET"


def test_failed_events_become_client_or_server_errors() -> None:
    client = failure(Failed("r", "constraint_dead_end", "m", "p"))
    assert isinstance(client, RequestError)
    assert client.param == "p"
    assert isinstance(failure(Failed("r", "engine_unavailable", "m")), EngineError)
