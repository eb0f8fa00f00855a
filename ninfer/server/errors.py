"""What a client is told about an error: code, message, parameter, status.

Owns the translation of exceptions; statuses and types stand in ``spec/http/errors.yaml``, how a protocol
writes them in ``envelopes.py``. Text of unforeseen exceptions is logged, never sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from sanic import exceptions as sanic_errors

from ninfer.engine.events import Failed
from ninfer.errors import EngineError, RequestError
from ninfer.spec.errors import error_row

_log = logging.getLogger("ninfer.server")
# All that a client is told of an unforeseen error.
INTERNAL = "The server failed on this request."


@dataclass(frozen=True, slots=True)
class WireError:
    """One error as a client sees it."""

    code: str
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def status(self) -> int:
        return error_row(self.code).status


def wire_error(error: BaseException) -> WireError:
    """What a client is told about ``error``; an unforeseen one is logged and told as ``internal_error``."""
    if isinstance(error, RequestError):
        headers = {"www-authenticate": "Bearer"} if error.code == "invalid_api_key" else {}
        return WireError(error.code, error.message, error.param, headers)
    if isinstance(error, EngineError):
        return WireError(error.code, error.message)
    if isinstance(error, sanic_errors.SanicException):
        return _of_sanic(error)
    if isinstance(error, asyncio.CancelledError):  # the client left; Sanic still asks for an answer
        return WireError("service_unavailable", "The request was cancelled.")
    _log.error("request failed: %s", type(error).__name__, exc_info=error)
    return WireError("internal_error", INTERNAL)


def failure(event: Failed) -> RequestError | EngineError:
    """A failed request's event as the exception that ends its handler."""
    if error_row(event.code).status < 500:
        return RequestError(event.code, event.message, event.param)
    return EngineError(event.code, event.message)


def _of_sanic(error: sanic_errors.SanicException) -> WireError:
    # Sanic quotes the request's head, in which a byte that is no UTF-8 has become half a character.
    text = str(error).encode(errors="backslashreplace").decode()
    if isinstance(error, sanic_errors.NotFound):
        return WireError("not_found", "There is no such route.")
    if isinstance(error, sanic_errors.MethodNotAllowed):
        return WireError("method_not_allowed", f"{text}.", headers=dict(error.headers))
    if isinstance(error, sanic_errors.PayloadTooLarge):
        # Sanic has one class for both; only its text tells a large head from a large body.
        code = "headers_too_large" if "header" in text.lower() else "request_too_large"
        return WireError(code, f"{text}.")
    if isinstance(error, sanic_errors.RequestTimeout):
        return WireError("request_timeout", "The request did not arrive in time.")
    if isinstance(error, sanic_errors.ExpectationFailed):
        return WireError("expectation_failed", f"{text}.")
    if isinstance(error, sanic_errors.ServiceUnavailable):
        return WireError("service_unavailable", "The server gave up on this request.")
    if error.status_code < 500:
        return WireError("bad_request", "The request is not well-formed HTTP.")
    _log.error("request failed in the HTTP layer", exc_info=error)
    return WireError("internal_error", INTERNAL)
