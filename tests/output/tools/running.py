"""Runs a turn's text through the tool parser, cut as a test wants it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ninfer.output.tools import ToolParser
from ninfer.prompt.conversation import Tool
from ninfer.prompt.prepared import Channel


@dataclass(frozen=True, slots=True)
class Outcome:
    """All text that was published, the calls as (name, arguments) and the diagnostics."""

    reasoning: str
    content: str
    calls: tuple[tuple[str, str], ...]
    diagnostics: Mapping[str, Any]


def declared(tools: Mapping[str, Mapping[str, Any]]) -> list[Tool]:
    """Tools of name → properties; ``$required`` among them is the schema's ``required``."""
    made = []
    for name, properties in tools.items():
        schema: dict[str, Any] = {"type": "object", "properties": dict(properties)}
        if "$required" in schema["properties"]:
            schema["required"] = schema["properties"].pop("$required")
        made.append(Tool(name, {"type": "function", "function": {"name": name, "parameters": schema}}))
    return made


def run(
    pieces: Sequence[tuple[Channel, str]],
    tools: Mapping[str, Mapping[str, Any]],
    *,
    tolerant: bool = False,
    truncated: bool = False,
    stopped: bool | None = None,
    thinking_closed: bool | None = None,
) -> Outcome:
    """The outcome of pushing ``pieces`` in order; a turn that began in thinking is closed by content only."""
    parser = ToolParser(declared(tools), tolerant)
    published = [entry for channel, text in pieces for entry in parser.push(channel, text)]
    if thinking_closed is None:
        thinking_closed = any(channel == "content" for channel, _ in pieces)
    turn = parser.finish(
        stopped_by_token=not truncated if stopped is None else stopped,
        truncated=truncated,
        thinking_closed=thinking_closed,
    )
    texts = {"reasoning": "", "content": ""}
    for channel, text in (*published, *turn.texts):
        assert text
        texts[channel] += text
    calls = tuple((call.name, call.arguments) for call in turn.calls)
    assert turn.diagnostics.structured_call_count == len(calls)
    return Outcome(texts["reasoning"], texts["content"], calls, asdict(turn.diagnostics))


def cut(channel: Channel, text: str, size: int) -> list[tuple[Channel, str]]:
    """``text`` in pieces of ``size`` characters."""
    return [(channel, text[at : at + size]) for at in range(0, len(text), size)]
