"""What the reader of an answer needs of a tool parser, and the one for requests that may not call tools.

Owns the interface only; Qwen's markup is read in ``ninfer/output/tools``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ninfer.output.thinking import ChannelText
from ninfer.output.tools import ParsedTurn
from ninfer.prompt.prepared import Channel


class ToolParser(Protocol):
    """Reads published text; holds what may belong to a call until the turn ends."""

    def push(self, channel: Channel, text: str) -> Sequence[ChannelText]:
        """Add text; what may be published now."""
        ...

    def finish(self, *, stopped_by_token: bool, truncated: bool, thinking_closed: bool) -> ParsedTurn:
        """The turn has ended: by the model's own stop token, at a limit (``truncated``), or otherwise."""
        ...


class NoTools:
    """The parser of a request that may not call tools: markup is text like any other."""

    def push(self, channel: Channel, text: str) -> Sequence[ChannelText]:
        return ((channel, text),)

    def finish(self, *, stopped_by_token: bool, truncated: bool, thinking_closed: bool) -> ParsedTurn:
        return ParsedTurn()
