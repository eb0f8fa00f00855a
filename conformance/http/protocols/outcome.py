"""What an answer of any protocol says, whole or streamed, so that the two can be compared."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.http.contract import document
from conformance.http.streams import Payload


@dataclass(frozen=True, slots=True)
class Outcome:
    """Text by channel, calls as (name, arguments), why it ended and the token counts."""

    reasoning: str
    content: str
    calls: tuple[tuple[str, str], ...]
    reason: str
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int


class Protocol(typing.Protocol):
    """How the suite speaks one protocol."""

    @property
    def path(self) -> str: ...

    @property
    def request_id_header(self) -> str:
        """Names every answer."""
        ...

    def body(self, model: str, members: Mapping[str, Any]) -> dict[str, Any]:
        """A small request with ``members`` in it; deterministic unless they say otherwise."""
        ...

    def question(self, text: str, limit: int, tool: str | None) -> dict[str, Any]:
        """Members that ask ``text`` for at most ``limit`` tokens, with a declared tool of that name."""
        ...

    def playing(self, body: Mapping[str, Any], play: int) -> dict[str, Any]:
        """``body`` for the scripted engine's play of that number."""
        ...

    def streamed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """``body`` as a stream that tells its token counts."""
        ...

    def read_stream(self, body: bytes) -> list[Payload]:
        """What the events of a stream hold; their framing must be the protocol's."""
        ...

    def check_whole(self, value: Any) -> Outcome:
        """Fails unless ``value`` is a valid whole answer."""
        ...

    def check_stream(self, stream: Sequence[Payload]) -> tuple[list[str], Outcome]:
        """Fails unless the events are valid and in order; their names and what they say."""
        ...

    def check_error(self, value: Any) -> tuple[str, str, str | None]:
        """Fails unless ``value`` is an error of the protocol; code, message and param."""
        ...

    def status_of(self, code: str) -> int:
        """The status that an error code has in this protocol."""
        ...


def openai_status(code: str) -> int:
    """The status of ``code`` on the OpenAI-style routes."""
    status: int = document("http/errors")["errors"][code]["status"]
    return status


def openai_request_id() -> str:
    """The header that names every answer of the OpenAI-style routes."""
    name: str = document("http/transport")["request_id_header"]
    return name
