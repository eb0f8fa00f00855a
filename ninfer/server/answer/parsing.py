"""What the reader of an answer needs of a tool parser, and the one for requests without tools.

Owns the interface between published text and structured calls. The parser of Qwen's markup stands in
``ninfer/output/tools``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ninfer.output.thinking import ChannelText
from ninfer.prompt.prepared import Channel


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call; ``arguments`` is the text of a JSON object in the model's member order."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolParse:
    """What was repaired or given up while a turn's tool markup was read."""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """The end of a turn: text that was held back after all, then the calls."""

    texts: Sequence[ChannelText] = ()
    calls: Sequence[ParsedCall] = ()
    diagnostics: ToolParse | None = None


class ToolParser(Protocol):
    """Reads published text; holds what may belong to a call until the turn ends."""

    def push(self, channel: Channel, text: str) -> Sequence[ChannelText]:
        """Add text; what may be published now."""
        ...

    def finish(self, *, stopped_by_token: bool, truncated: bool) -> ParsedTurn:
        """The turn has ended: by the model's own stop token, at a limit (``truncated``), or otherwise."""
        ...


class NoTools:
    """The parser of a request that may not call tools: markup is text like any other."""

    def push(self, channel: Channel, text: str) -> Sequence[ChannelText]:
        return ((channel, text),)

    def finish(self, *, stopped_by_token: bool, truncated: bool) -> ParsedTurn:
        return ParsedTurn()
