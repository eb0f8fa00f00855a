"""What the tool parser found in one turn.

Owns plain values; counters carry no argument and no generated text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ninfer import spec
from ninfer.output.thinking import ChannelText

FallbackReason = Literal[
    "none",
    "malformed_structure",
    "invalid_tool_name",
    "undeclared_tool",
    "trailing_content",
    "truncated_tail",
]


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call; ``arguments`` is a JSON object, its members in the model's order, each key once."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolParse:
    """Diagnostics of one turn, as the request log has them."""

    marker_seen: bool = False
    structured_call_count: int = 0
    empty_arguments_omitted: int = 0
    schema_mismatches: int = 0
    duplicate_parameters_repaired: int = 0
    fallback_reason: FallbackReason = "none"
    tolerant_recovered: bool = False
    recovered_from_reasoning: bool = False


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """The end of a turn: text still to publish, in order, then the calls.

    ``returned_markup`` is the text from the marker on where markup went back to text, else empty.
    """

    texts: tuple[ChannelText, ...] = ()
    calls: tuple[ParsedCall, ...] = ()
    diagnostics: ToolParse = ToolParse()
    returned_markup: str = ""


def shown_markup(markup: str) -> str:
    """The beginning of returned markup as one line of the console: tabs and line breaks as spaces."""
    limit: int = spec.document("tools")["warning_bytes"]
    encoded = markup.encode()
    line = encoded[:limit].decode(errors="ignore")
    shown = "".join(" " if character in "\t\r\n" else character for character in line)
    return shown + "..." if len(encoded) > limit else shown
