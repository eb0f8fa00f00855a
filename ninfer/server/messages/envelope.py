"""Errors and answer ids as Anthropic's clients read them."""

from __future__ import annotations

from typing import Any

import msgspec

from ninfer import spec
from ninfer.server.errors import WireError


class AnthropicEnvelope:
    """``{"type": "error", "error": {"type", "message", "code"}, "request_id"}``; an ``Envelope``."""

    request_id_header = "request-id"

    def status(self, error: WireError) -> int:
        own: dict[str, int] = spec.document("http/messages")["error_statuses"]
        return own.get(error.code, error.status)

    def body(self, error: WireError, request_id: str) -> bytes:
        return msgspec.json.encode(self.members(error, request_id))

    def members(self, error: WireError, request_id: str) -> dict[str, Any]:
        """The error object: a body, or the data of an ``error`` event."""
        tables = spec.document("http/messages")
        types = tables["error_types"]
        kind: str = types["by_status"].get(str(self.status(error)), types["default"])
        detail: dict[str, Any] = {"type": kind, "message": error.message, "code": error.code}
        if details := tables["refused"].get(error.param, {}).get("details"):
            detail["details"] = details
        return {"type": "error", "error": detail, "request_id": request_id}


ANTHROPIC = AnthropicEnvelope()
