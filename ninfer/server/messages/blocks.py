"""Content blocks of one message: which kinds each role may hold, and what the others lack.

Owns one block at a time; how messages form turns stands in ``history.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ninfer import spec
from ninfer.errors import RequestError
from ninfer.prompt.conversation import TextPart, ToolCall
from ninfer.server.members import Members, objects
from ninfer.server.messages.cache_control import CacheMarkers
from ninfer.server.messages.thinking import reasoning_of
from ninfer.server.tools import tool_name

_CONTENT = "a string or an array of content blocks"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A thinking block's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Result:
    """A tool result."""

    id: str
    parts: tuple[TextPart, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """A tool call; ``block`` names it in errors."""

    call: ToolCall
    block: Members


Block = TextPart | Reasoning | Use | Result
_ALLOWED: Mapping[str, tuple[str, ...]] = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
}


def read_content(entry: Members, role: str, markers: CacheMarkers) -> Iterator[tuple[Block, Members]]:
    """The blocks of the member ``content``, each with its place. Errors: ``RequestError`` naming it."""
    content = entry.value("content")
    if not entry.has("content"):
        raise entry.missing("content")
    if isinstance(content, str):
        markers.blocks += 1
        yield TextPart(content), entry
        return
    if not isinstance(content, list):
        raise entry.wrong_type("content", _CONTENT)
    for block in objects(content, entry.at("content")):
        yield _block(block, role, markers), block


def read_system(body: Members, markers: CacheMarkers) -> tuple[TextPart, ...]:
    """The top-level ``system`` without a client's billing header. Errors: ``RequestError``."""
    value = body.value("system")
    if value is None:
        return ()
    if isinstance(value, str):
        markers.blocks += 1
        return (TextPart(value),)
    if not isinstance(value, list):
        raise body.wrong_type("system", "a string or an array of text blocks")
    header: str = spec.document("http/messages")["billing_header"]
    parts = []
    for index, block in enumerate(objects(value, body.at("system"))):
        _check_kind(block, _ALLOWED["system"])
        text = block.required_string("text")
        if index == 0 and text.startswith(header):
            continue  # with its marker, if it has one
        parts.append(TextPart(text, markers.block(block)))
    return tuple(parts)


def _block(block: Members, role: str, markers: CacheMarkers) -> Block:
    kind = _check_kind(block, _ALLOWED[role])
    if kind == "tool_result":
        parts = tuple(_result_parts(block, markers))
        if markers.block(block) and parts:
            parts = (*parts[:-1], TextPart(parts[-1].text, True))
        mark: str = spec.document("http/messages")["tool_error_mark"]
        failed = block.boolean("is_error")
        return Result(block.required_string("tool_use_id"), (TextPart(mark), *parts) if failed else parts)
    marked = markers.block(block)
    if kind == "text":
        return TextPart(block.required_string("text"), marked)
    if kind == "thinking":
        return Reasoning(reasoning_of(block))
    return Use(ToolCall(tool_name(block), _input(block), block.required_string("id")), block)


def _result_parts(block: Members, markers: CacheMarkers) -> Iterator[TextPart]:
    content = block.value("content")
    if content is None:
        return
    if isinstance(content, str):
        yield TextPart(content)
        return
    if not isinstance(content, list):
        raise block.wrong_type("content", _CONTENT)
    for part in objects(content, block.at("content")):
        _check_kind(part, ("text",))
        marked = markers.block(part)
        yield TextPart(part.required_string("text"), marked)


def _check_kind(block: Members, allowed: tuple[str, ...]) -> str:
    """The block's type. Errors: ``RequestError``, with the missing capability where there is one."""
    kind = block.required_string("type")
    if kind in allowed:
        return kind
    if kind == "image":
        raise RequestError(
            "vision_disabled", f"{block.path} is an image, but this server runs without --vision.", block.path
        )
    lacking: Mapping[str, str] = spec.document("http/messages")["refused_blocks"]
    if kind in lacking:
        raise block.invalid(
            "type", f"{kind} is not supported: NInfer does not provide {lacking[kind]}", "unsupported_value"
        )
    raise block.invalid("type", f"must be one of {', '.join(allowed)} here, not {kind!r}")


def _input(block: Members) -> Mapping[str, Any]:
    given = block.child("input")
    if given is None:
        raise block.missing("input")
    return given.values
