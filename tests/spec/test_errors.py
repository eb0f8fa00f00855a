"""The typed view of the error table."""

from __future__ import annotations

import pytest

from ninfer.errors import SpecError
from ninfer.spec import document
from ninfer.spec.errors import error_row, error_table


def test_every_row_of_the_document_is_there() -> None:
    assert list(error_table()) == list(document("http/errors")["errors"])
    assert all(row.code == code for code, row in error_table().items())


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("invalid_prompt", 400, "invalid_request_error"),
        ("context_length_exceeded", 400, "invalid_request_error"),
        ("unsupported_parameter", 400, "invalid_request_error"),
        ("model_not_found", 404, "invalid_request_error"),
        ("request_too_large", 413, "invalid_request_error"),
        ("server_overloaded", 429, "rate_limit_error"),
        ("insufficient_memory", 503, "server_error"),
        ("engine_unavailable", 503, "server_error"),
        ("service_unavailable", 503, "server_error"),
        ("request_queue_timeout", 503, "server_error"),
        ("internal_error", 500, "server_error"),
        ("media_fetch_failed", 502, "server_error"),
        ("media_fetch_timeout", 504, "server_error"),
        ("invalid_api_key", 401, "invalid_request_error"),
    ],
)
def test_statuses_are_those_of_the_contract(code: str, status: int, kind: str) -> None:
    row = error_row(code)
    assert (row.status, row.type) == (status, kind)


def test_an_unknown_code_is_our_own_mistake() -> None:
    with pytest.raises(SpecError, match="'nope'"):
        error_row("nope")
