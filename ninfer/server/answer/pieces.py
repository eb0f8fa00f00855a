"""The pieces of an answer, named by no protocol.

Owns plain values only; those made for every token are structs, which are quicker to make. Order: ``Begun``,
any ``Prompted``, then ``Text`` (reasoning before content), then ``Call`` pieces together, then exactly one
``Ended``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from ninfer.engine.events import Usage
from ninfer.output.tools import ToolParse
from ninfer.prompt.prepared import Channel

EndReason = Literal["stop", "length", "tool_calls", "cancelled"]


class TimingSnapshot(msgspec.Struct, frozen=True, gc=False):
    """How far an answer had come when its newest token was committed.

    ``prompt_s`` runs from admission to the first output token, ``decode_s`` from there to the newest one.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prompt_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class Begun:
    """The request was admitted; ``cached_tokens`` of its prompt are reused."""

    prompt_tokens: int
    cached_tokens: int
    queue_s: float


@dataclass(frozen=True, slots=True)
class Prompted:
    """``processed`` of ``total`` prompt tokens are taken in, ``elapsed_s`` after admission."""

    total: int
    cached: int
    processed: int
    elapsed_s: float


class Text(msgspec.Struct, frozen=True, gc=False):
    """Whole characters of one channel, outside any tool region; ``timings`` where the engine gives them."""

    channel: Channel
    text: str
    timings: TimingSnapshot | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One whole tool call; ``arguments`` is a JSON object's text with the model's member order."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The good end. ``context_full`` tells that a ``length`` came from the context, not from the request.

    ``tool_parse`` says what was found and repaired in tool markup.
    """

    reason: EndReason
    stop_string: str | None
    usage: Usage
    context_full: bool = False
    tool_parse: ToolParse = field(default_factory=ToolParse)


Piece = Begun | Prompted | Text | Call | Ended
