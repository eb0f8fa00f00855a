"""How a protocol writes errors and names its answers: chosen by the route that was asked.

Owns the choice, the request id and Sanic's hook for errors. What an error says stands in ``errors.py``; a
protocol with an envelope of its own registers it in ``ENVELOPES`` of ``routes.py``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec
from sanic import HTTPResponse
from sanic.handlers import ErrorHandler
from sanic.request import Request

from ninfer import spec
from ninfer.errors import NinferError
from ninfer.server.errors import INTERNAL, WireError, wire_error
from ninfer.server.observe.records import SentError
from ninfer.spec.errors import error_row


class Envelope(Protocol):
    """One protocol's errors; ``request_id_header`` names every answer of its routes."""

    @property
    def request_id_header(self) -> str: ...

    def status(self, error: WireError) -> int: ...

    def body(self, error: WireError, request_id: str) -> bytes:
        """The JSON of an error, on one line."""
        ...


class OpenAIEnvelope:
    """``{"error": {"message", "type", "param", "code"}}``."""

    @property
    def request_id_header(self) -> str:
        name: str = spec.document("http/transport")["request_id_header"]
        return name

    def status(self, error: WireError) -> int:
        return error.status

    def body(self, error: WireError, request_id: str = "") -> bytes:
        members: dict[str, Any] = {
            "message": error.message,
            "type": error_row(error.code).type,
            "param": error.param,
            "code": error.code,
        }
        return msgspec.json.encode({"error": members})


OPENAI = OpenAIEnvelope()


def error_response(envelope: Envelope, error: WireError, request_id: str) -> HTTPResponse:
    headers = dict(error.headers)
    if (seconds := error_row(error.code).retry_after_s) is not None:
        headers["retry-after"] = str(seconds)
    return HTTPResponse(
        envelope.body(error, request_id),
        status=envelope.status(error),
        headers=headers,
        content_type="application/json",
    )


def sent(envelope: Envelope, request_id: str, error: Exception) -> SentError:
    """What a client of ``envelope`` reads of ``error``."""
    if isinstance(error, NinferError):
        wire = wire_error(error)
    else:  # logged where it is answered
        wire = WireError("internal_error", INTERNAL)
    members = msgspec.json.decode(envelope.body(wire, request_id))["error"]
    return SentError(
        envelope.status(wire), members["type"], wire.code, members.get("param"), members["message"]
    )


def request_id(request: Request) -> str:
    """The id of this request's answer; the same however often it is asked for."""
    if not hasattr(request.ctx, "answer_id"):
        request.ctx.answer_id = f"req_{uuid.uuid4().hex}"
    answer_id: str = request.ctx.answer_id
    return answer_id


class Envelopes:
    """The envelope of each route: by the path's beginning, behind a doubled ``/v1`` too; else OpenAI's."""

    def __init__(self, by_prefix: Mapping[str, Envelope]) -> None:
        self._by_prefix = by_prefix

    def of(self, path: str) -> Envelope:
        path = path.removeprefix("/v1") if path.startswith("/v1/v1/") else path
        for prefix, envelope in self._by_prefix.items():
            if path == prefix or path.startswith(prefix + "/"):
                return envelope
        return OPENAI


class WireErrorHandler(ErrorHandler):
    """Sanic's hook for every error before, in and after a handler; ``allowed`` are the methods of a path."""

    def __init__(self, envelopes: Envelopes, allowed: Callable[[str], Sequence[str]]) -> None:
        super().__init__()
        self._envelopes = envelopes
        self._allowed = allowed

    def default(self, request: Request, exception: Exception) -> HTTPResponse:
        error = wire_error(exception)
        if error.code == "method_not_allowed":
            error = replace(error, headers={"allow": ", ".join(self._allowed(request.path))})
        return error_response(self._envelopes.of(request.path), error, request_id(request))
