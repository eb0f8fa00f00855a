"""Who may ask, and what browsers are told: the API key and CORS, for every route alike.

Owns both middlewares. The key is compared in constant time and never logged; which headers and how long a
preflight is remembered stand in ``spec/http/transport.yaml``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator

from sanic import HTTPResponse
from sanic.request import Request
from sanic.response import BaseHTTPResponse

from ninfer import spec
from ninfer.errors import RequestError

_OPEN_PATH = "/health"
_METHODS = "GET, HEAD, POST, DELETE, OPTIONS"


class Access:
    """The access rules of one server; ``key`` None asks for none."""

    def __init__(self, key: str | None, cors: bool) -> None:
        self._digest = None if key is None else _digest(key)
        self.cors = cors

    def admit(self, request: Request) -> HTTPResponse | None:
        """Request middleware: answers preflights. Errors: ``RequestError`` ``invalid_api_key``."""
        if request.method == "OPTIONS":
            return self._preflight(request) if self.cors else None
        if self._digest is not None and request.path != _OPEN_PATH and not self._knows_key(request):
            raise RequestError(
                "invalid_api_key",
                "This server asks for its API key, as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
            )
        return None

    def open_to_browsers(self, request: Request, response: BaseHTTPResponse) -> None:
        """Response middleware: any origin may read the answer and its headers."""
        response.headers["access-control-allow-origin"] = "*"
        response.headers["access-control-expose-headers"] = "*"

    def _preflight(self, request: Request) -> HTTPResponse:
        rules = spec.document("http/transport")["preflight"]
        asked = request.headers.get("access-control-request-headers")
        headers = {
            "access-control-allow-methods": _METHODS,
            "access-control-allow-headers": asked or ", ".join(rules["headers"]),
            "access-control-max-age": str(rules["max_age_s"]),
            "vary": "access-control-request-headers",
        }
        return HTTPResponse(status=204, headers=headers)

    def _knows_key(self, request: Request) -> bool:
        assert self._digest is not None
        # Every key that was given is compared, so that time tells nothing about the others.
        matches = [hmac.compare_digest(_digest(given), self._digest) for given in _given_keys(request)]
        return any(matches)


def _given_keys(request: Request) -> Iterator[str]:
    for value in request.headers.getall("authorization", ()):
        scheme, _, key = value.strip().partition(" ")
        if scheme.lower() == "bearer":
            yield key.strip()
    for value in request.headers.getall("x-api-key", ()):
        yield value.strip()


def _digest(key: str) -> bytes:
    """Of equal length for every key: a comparison then takes as long for any."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
